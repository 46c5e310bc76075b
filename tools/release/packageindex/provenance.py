"""The provenance of a wheel: PEP 740 objects, made of the bundle that GitHub's attestation gives.

No signature is verified here: `gh attestation verify` does that, before publication and for anyone
after it. What is checked is that the statement speaks of this very file.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from packageindex.wheels import Refusal, Wheel, digest

SLSA = "https://slsa.dev/provenance/v1"
Json = Mapping[str, Any]


def statement_of(bundle: Json) -> Json:
    found: Json = json.loads(base64.b64decode(bundle["dsseEnvelope"]["payload"], validate=True))
    return found


def attestation(bundle: Json) -> dict[str, Any]:
    """A sigstore bundle as an attestation object."""
    material, envelope = bundle["verificationMaterial"], bundle["dsseEnvelope"]
    [signature] = envelope["signatures"]
    return {
        "version": 1,
        "verification_material": {
            "certificate": material["certificate"]["rawBytes"],
            "transparency_entries": material["tlogEntries"],
        },
        "envelope": {"statement": envelope["payload"], "signature": signature["sig"]},
    }


def publisher(statement: Json) -> dict[str, Any]:
    """Repository and workflow that the statement names, as PyPI writes them."""
    source = statement["predicate"]["buildDefinition"]["externalParameters"]["workflow"]
    return {
        "kind": "GitHub",
        "repository": source["repository"].removeprefix("https://github.com/"),
        "workflow": source["path"].rpartition("/")[2],
        "environment": None,
    }


def describes(statement: Json, wheel: Wheel) -> bool:
    subjects = [(s["name"], s["digest"]["sha256"]) for s in statement["subject"]]
    return statement["predicateType"] == SLSA and (wheel.file.name, wheel.file.sha256) in subjects


def provenance(path: Path, wheel: Wheel) -> bytes:
    """`path` has a bundle on each line, as `gh attestation download` writes them."""
    try:
        bundles = [json.loads(line) for line in path.read_text("utf-8").splitlines() if line]
        own = [(statement_of(bundle), bundle) for bundle in bundles]
        own = [(statement, bundle) for statement, bundle in own if describes(statement, wheel)]
        groups = [
            {"publisher": publisher(statement), "attestations": [attestation(bundle)]}
            for statement, bundle in own
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, binascii.Error) as error:
        raise Refusal(f"{path} has no bundles of attestations: {error!r}") from error
    if not groups:
        raise Refusal(
            f"{path} attests nothing of {wheel.file.name} with sha256 {wheel.file.sha256}: "
            "it belongs to another file"
        )
    return (json.dumps({"version": 1, "attestation_bundles": groups}, indent=1) + "\n").encode()


def with_provenance(wheel: Wheel, path: Path, folder_url: str) -> Wheel:
    """`folder_url`: where the wheel will be served. PEP 740 asks for absolute addresses."""
    data = provenance(path, wheel)
    name = f"{wheel.file.name}.provenance"
    file = replace(
        wheel.file,
        provenance_sha256=digest(data),
        provenance_url=f"{folder_url.rstrip('/')}/{quote(name)}",
    )
    return replace(wheel, file=file, provenance=data)
