"""tools/compat/torch_matrix.py, but for what it downloads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch_matrix
from torch_matrix import Outcome

ROOT = Path(__file__).resolve().parents[2]


def test_the_newest_of_each_minor_version_is_taken() -> None:
    text = "3.0.0, 2.15.0, 2.14.1, 2.14.0, 2.13.0+cpu, 2.13.0, 2.12.0rc1, 2.10.0, 2.9.1, 1.13.1"
    expected = ["2.10.0", "2.13.0", "2.14.1", "2.15.0", "3.0.0"]
    assert torch_matrix.newest_of_each_minor(text.split(",")) == expected


def test_environments_lead_to_the_installed_package_only() -> None:
    given = {
        "PATH": "/bin",
        "PYTHONPATH": "/x",
        "CUTWHEEL_PACKAGE_DIR": "/x",
        "CUTWHEEL_ARCH": "sm80",
    }
    cleaned = torch_matrix.clean_environment(given)
    assert cleaned["PATH"] == "/bin"
    assert cleaned["CUDA_VISIBLE_DEVICES"] == ""
    assert "PYTHONPATH" not in cleaned
    assert not [name for name in cleaned if name.startswith("CUTWHEEL_")]


def test_pytest_is_that_of_the_requirements() -> None:
    assert torch_matrix.pin("pytest").startswith("pytest==")
    with pytest.raises(SystemExit, match="does not pin nonsense"):
        torch_matrix.pin("nonsense")


def test_a_torch_that_differs_from_the_newest_one_fails() -> None:
    old = Outcome("2.9.0", seen={"a": "1\n2", "b": "same", "c": "3"})
    new = Outcome("2.15.0", seen={"a": "1\n4", "b": "same"})
    broken = Outcome("2.16.0", problems=["the probe fails"])
    torch_matrix.compare([new, old, broken])
    assert old.problems == [
        "a: '2', with the newest torch '4'",
        "c: '3', with the newest torch 'nothing'",
    ]
    assert new.problems == []


def test_failed_tests_are_named(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(
        "<testsuites><testsuite>"
        '<testcase classname="tests.test_a" name="test_good"/>'
        '<testcase classname="tests.test_a" name="test_bad"><failure message="no&#10;more"/>'
        '</testcase><testcase classname="tests.test_b" name="test_setup"><error message="E"/>'
        '</testcase><testcase classname="tests.test_b" name="test_gpu"><skipped message="s"/>'
        "</testcase></testsuite></testsuites>"
    )
    failures = ["tests.test_a::test_bad: no", "tests.test_b::test_setup: E"]
    assert torch_matrix.read_junit(report) == (1, 2, 1, failures)


def test_the_table_says_which_torch_fails() -> None:
    good = Outcome("2.10.0", "2.10.0+cpu", "3.11.7", 150, 990, 0, 1, 61.4)
    bad = Outcome("2.11.0", problems=["pip does not install torch 2.11.0"])
    rows = torch_matrix.table([good, bad]).splitlines()[2:]
    assert rows[0] == "| 2.10.0+cpu | 3.11.7 | 150 | 990 | 0 | 1 | 61 | passes |"
    assert rows[1].startswith("| 2.11.0 |")
    assert rows[1].endswith("| fails |")


def test_the_nightly_is_compared_with_a_release_and_is_no_reference() -> None:
    release, nightly = Outcome("2.15.0", seen={"mm": "a"}), Outcome("nightly", seen={"mm": "b"})
    torch_matrix.compare([release, nightly])
    assert release.problems == []
    assert nightly.problems == ["mm: 'b', with the newest torch 'a'"]
    found = torch_matrix.requirements("nightly")
    assert {"--pre", torch_matrix.NIGHTLY_INDEX} < set(found)
    assert torch_matrix.requirements("2.15.0")[0] == "torch==2.15.0"


def test_the_nightly_comes_with_the_newest_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []

    def examine(release: str, *others: object) -> Outcome:
        tried.append(release)
        return Outcome(release, problems=[] if release != "nightly" else ["an op is gone"])

    wheel = tmp_path / "x.whl"
    wheel.write_bytes(b"")
    monkeypatch.setattr(torch_matrix, "examine", examine)
    monkeypatch.setattr(torch_matrix, "offered", lambda python: ["2.10.0", "2.15.0"])
    command = [str(wheel), "--cache", str(tmp_path), "--nightly"]
    assert torch_matrix.main(command) == 1
    assert tried == ["2.15.0", "nightly"]


def test_an_absent_wheel(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert torch_matrix.main([str(tmp_path / "absent.whl"), "2.10.0"]) == 2
    assert "make wheel" in capsys.readouterr().err


def test_the_probe_holds_with_the_torch_of_the_build(tmp_path: Path) -> None:
    """That of requirements/torch.txt, in this environment; the matrix runs it with the others."""
    pytest.importorskip("cutwheel", reason="needs the built package (make test builds it)")
    notes = tmp_path / "notes.json"
    done = subprocess.run(
        [sys.executable, str(torch_matrix.PROBE), str(notes)],
        cwd=ROOT,
        env=torch_matrix.clean_environment(os.environ),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(notes.read_text())
    assert found["problems"] == []
    assert "schema cutwheel::gemm.out" in found["seen"]
    assert found["seen"]["on the CPU: mm"].startswith("NotImplementedError: mm: the tensors are on")
