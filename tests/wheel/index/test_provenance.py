"""tools/release/index.py --provenance: from the bundle of an attestation to PEP 740."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from conftest import Index

URL = "https://cutwheel.github.io/cutwheel"
SLSA = "https://slsa.dev/provenance/v1"


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def bundle(name: str, sha256: str, predicate: str = SLSA, signature: bytes = b"s") -> str:
    workflow = {
        "ref": "refs/tags/v0.1.0",
        "repository": "https://github.com/cutwheel/cutwheel",
        "path": ".github/workflows/wheels.yml",
    }
    statement = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": name, "digest": {"sha256": sha256}}],
        "predicateType": predicate,
        "predicate": {"buildDefinition": {"externalParameters": {"workflow": workflow}}},
    }
    envelope = {
        "payload": encoded(json.dumps(statement).encode()),
        "payloadType": "application/vnd.in-toto+json",
        "signatures": [{"sig": encoded(signature)}],
    }
    material = {
        "certificate": {"rawBytes": encoded(b"certificate")},
        "tlogEntries": [{"logIndex": "1"}],
    }
    return json.dumps({"verificationMaterial": material, "dsseEnvelope": envelope})


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def publish(index: Index, tmp_path: Path) -> Callable[..., int]:
    def run(wheel: Path, *bundles: str) -> int:
        folder = tmp_path / "bundles"
        folder.mkdir(exist_ok=True)
        (folder / f"{wheel.name}.sigstore.jsonl").write_text("\n".join(bundles) + "\n")
        return index.run("--variant", "cu130", "--provenance", folder, "--url", URL, wheel)

    return run


def provenance_of(index: Index, wheel: Path) -> dict[str, Any]:
    found = json.loads((index.project / f"{wheel.name}.provenance").read_bytes())
    assert isinstance(found, dict)
    return found


def test_pages_link_the_provenance(
    index: Index, wheels: list[Path], publish: Callable[..., int]
) -> None:
    wheel = wheels[0]
    other = bundle(wheel.name, sha256(wheel), "https://example.org/release/v1")
    assert publish(wheel, other, bundle(wheel.name, sha256(wheel))) == 0
    address = f"{URL}/cu130/cutwheel/{wheel.name}.provenance"
    assert index.files()[wheel.name]["provenance"] == address
    text = (index.project / "index.html").read_text()
    assert re.findall(r'data-provenance="([^"]+)"', text) == [address]
    found = provenance_of(index, wheel)
    assert found["version"] == 1
    [group] = found["attestation_bundles"]  # only the statement about the build
    assert group["publisher"]["repository"] == "cutwheel/cutwheel"
    assert group["publisher"]["workflow"] == "wheels.yml"
    [attestation] = group["attestations"]
    assert attestation["verification_material"]["transparency_entries"] == [{"logIndex": "1"}]
    statement = json.loads(base64.b64decode(attestation["envelope"]["statement"]))
    assert statement["subject"][0]["digest"]["sha256"] == sha256(wheel)
    assert index.run("--verify") == 0


def test_the_provenance_of_another_file_is_refused(
    index: Index,
    wheels: list[Path],
    publish: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    wheel, other = wheels[:2]
    for wrong in (
        bundle(wheel.name, sha256(other)),
        bundle(other.name, sha256(wheel)),
        bundle(wheel.name, sha256(wheel), "https://example.org/release/v1"),
    ):
        assert publish(wheel, wrong) == 1
        assert f"attests nothing of {wheel.name}" in capsys.readouterr().err
    assert publish(wheel, "{}") == 1
    assert "has no bundles" in capsys.readouterr().err
    assert not (index.project / wheel.name).exists()


def test_a_lost_or_changed_provenance_is_found(
    index: Index, wheels: list[Path], publish: Callable[..., int]
) -> None:
    publish(wheels[0], bundle(wheels[0].name, sha256(wheels[0])))
    path = index.project / f"{wheels[0].name}.provenance"
    path.write_text(path.read_text().replace("wheels.yml", "others.yml"))
    assert index.run("--verify") == 1
    path.unlink()
    assert index.run("--verify") == 1


def test_it_can_follow_and_stays(
    index: Index, wheels: list[Path], publish: Callable[..., int]
) -> None:
    wheel = wheels[0]
    index.publish(wheel)
    uploaded = index.files()[wheel.name]["upload-time"]
    assert publish(wheel, bundle(wheel.name, sha256(wheel))) == 0
    first = provenance_of(index, wheel)
    assert index.files()[wheel.name]["upload-time"] == uploaded
    # A job that runs again signs again.
    assert publish(wheel, bundle(wheel.name, sha256(wheel), signature=b"t")) == 0
    assert provenance_of(index, wheel) == first
    assert index.run("--verify") == 0
