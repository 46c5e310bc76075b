"""tools/compat/schema_lock.py: what is collected, and a lock's life between releases."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import schema_changes
import schema_lock
import torch
from schema_changes import SECTIONS, Interface
from schema_lock import Lock, LockError, problems, rewritten
from torch import Tensor

# --- the lock


def interface(**sections: dict[str, Any]) -> Interface:
    return {section: {} for section in SECTIONS} | sections


OLD = interface(functions={"f": ["a: int", "-> int"], "g": ["-> int"]})
ADDED = interface(functions={**OLD["functions"], "h": ["-> int"]})
BROKEN = interface(functions={"f": ["a: int", "-> int"]})
RESPELLED = interface(functions={"f": ["a:  int", "-> int"], "g": ["-> int"]})


def test_how_tensor_is_imported_changes_nothing() -> None:
    def as_module(x: torch.Tensor | None) -> tuple[torch.Tensor, ...]: ...

    def by_name(x: Tensor | None) -> tuple[Tensor, ...]: ...

    def another(x: torch.nested.NestedTensor | None) -> tuple[Tensor, ...]: ...

    lines = [schema_lock.signature_text(f, "f") for f in (as_module, by_name, another)]
    assert lines[0] == lines[1] == ["x: torch.Tensor | None", "-> tuple[torch.Tensor, ...]"]
    assert lines[2][0] == "x: torch.nested.NestedTensor | None"


def test_before_the_first_release_only_the_lock_has_to_follow() -> None:
    lock = Lock("0.1.0", False, OLD)
    assert not problems(lock, OLD, "0.1.0")
    (text,) = problems(lock, BROKEN, "0.1.0")
    assert "  breaks  function g: removed" in text
    assert "Nothing is released yet" in text
    assert "run `make schemas`" in text
    assert not problems(rewritten(lock, BROKEN, "0.1.0"), BROKEN, "0.1.0")


@pytest.mark.parametrize(
    ("version", "now", "needed"),
    [
        ("1.2.3", BROKEN, "2.0.0"),
        ("1.2.4", BROKEN, "2.0.0"),
        ("1.3.0", BROKEN, "2.0.0"),
        ("2.0.0", BROKEN, None),
        ("1.2.3", ADDED, "1.3.0"),
        ("1.2.4", ADDED, "1.3.0"),
        ("1.3.0", ADDED, None),
        ("1.2.4", RESPELLED, None),
        ("1.2.3", RESPELLED, None),
    ],
)
def test_after_a_release_the_version_has_to_follow(
    version: str, now: Interface, needed: str | None
) -> None:
    lock = Lock("1.2.3", True, OLD)
    stale, *refused = problems(lock, now, version)
    assert "run `make schemas`" in stale
    # Rewriting the lock is no way round it, however often it is done.
    for _ in range(2):
        lock = rewritten(lock, now, version)
        assert problems(lock, now, version) == refused
    assert bool(refused) == (needed is not None)
    if needed is not None:
        assert f"{version} may not differ like this from 1.2.3" in refused[0]
        assert f"to {needed} or higher" in refused[0]


def test_a_change_that_is_taken_back_needs_no_version() -> None:
    lock = rewritten(Lock("1.2.3", True, OLD), BROKEN, "1.2.4")
    assert problems(lock, BROKEN, "1.2.4")
    assert not problems(rewritten(lock, OLD, "1.2.4"), OLD, "1.2.4")


def test_a_released_lock_holds_for_later_versions_of_the_same() -> None:
    lock = Lock("1.2.3", True, OLD)
    assert not problems(lock, OLD, "1.2.3")
    assert not problems(lock, OLD, "1.2.4")
    (text,) = problems(lock, OLD, "1.2.2")
    assert "1.2.3 is released already" in text
    assert rewritten(lock, OLD, "1.2.3") == lock


def test_a_version_whose_release_was_not_noted() -> None:
    (text,) = problems(Lock("0.1.0", False, OLD), OLD, "0.2.0")
    assert """If 0.1.0 was released, write '"released": true'""" in text


@pytest.mark.parametrize("now", [OLD, ADDED, BROKEN, RESPELLED])
def test_a_lock_is_read_as_it_was_written(tmp_path: Path, now: Interface) -> None:
    first = Lock("0.1.0", True, OLD)
    for lock in (Lock("0.1.0", False, now), first, rewritten(first, now, "0.2.0")):
        (tmp_path / "lock").write_text(lock.text())
        assert schema_lock.read(tmp_path / "lock") == lock


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"version": "1"}', Lock("x", True, OLD).text(), "released"]
)
def test_a_file_that_is_no_lock(tmp_path: Path, text: str) -> None:
    path = tmp_path / "lock"
    if text == "released":
        text = Lock("0.1.0", True, OLD).text().replace("true", '"yes"')
    path.write_text(text)
    with pytest.raises(LockError, match=r"is no lock .* take it from git"):
        schema_lock.read(path)


# --- what is collected


@dataclass(frozen=True)
class Answer:
    name: str
    size: int = 0

    def shown(self, *, wide: bool = False) -> str:
        """A method of a result."""
        raise NotImplementedError


@pytest.mark.parametrize(
    ("printed", "text"),
    [
        ("float b=1.", "float b=1.0"),
        ("float b=1, int c=1", "float b=1.0, int c=1"),
        ("float b=-0.25, float? c=2", "float b=-0.25, float? c=2.0"),
        ("float b=1.0000000000000001e-05", "float b=1e-05"),
        ("float[] b=[1, 2.], int[2] c=[1, 1]", "float[] b=[1.0, 2.0], int[2] c=[1, 1]"),
        ("float[2]? b=None, str c='x'", 'float[2]? b=None, str c="x"'),
    ],
)
def test_schemas_are_written_in_one_way(printed: str, text: str) -> None:
    assert schema_lock.schema_text(f"n::x({printed}) -> ()") == f"n::x({text}) -> ()"
    assert schema_lock.schema_text(f"n::x({text}) -> ()") == f"n::x({text}) -> ()"


def synthetic(**names: Any) -> ModuleType:
    module = ModuleType("synthetic")
    vars(module).update(names, __all__=list(names))
    return module


def test_collects_what_all_names() -> None:
    def f(a: int, /, b: str | None = None, *args: int, c: float = 1.0, **rest: object) -> None: ...

    def g(*, a: int) -> dict[str,  int]: return {}  # fmt: skip

    inner = synthetic(g=g)
    found = schema_lock.public_names(synthetic(f=f, Answer=Answer, inner=inner, number=1))
    assert found["functions"] == {
        "f": [
            *("a: int", "/", "b: str | None = None", "*args: int", "c: float = 1.0"),
            *("**rest: object", "-> None"),
        ],
        "inner.g": ["*", "a: int", "-> dict[str, int]"],
    }
    assert found["classes"] == {
        "Answer": {
            "fields": ["name: str", "size: int = 0"],
            "methods": {"shown": ["*", "wide: bool = False", "-> str"]},
        }
    }
    assert found["values"] == {"number": "int"}
    signature = schema_changes.python_signature(found["functions"]["f"])
    assert list(signature.parameters) == ["a", "b", "c", "*", "**"]


def test_refuses_what_has_no_lasting_text() -> None:
    def no_annotation(a) -> None: ...  # type: ignore[no-untyped-def]

    def no_text(a: object = object()) -> None: ...

    with pytest.raises(LockError, match=r"x\.f, a: no annotation"):
        schema_lock.public_names(synthetic(f=no_annotation), "x.")
    with pytest.raises(LockError, match=r"f, a: the default <object .* has no lasting text"):
        schema_lock.public_names(synthetic(f=no_text))


# --- the command, and the package


def run(*arguments: str | Path) -> int:
    return schema_lock.main([str(argument) for argument in arguments])


def test_the_life_of_a_lock(
    cutwheel: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "lock"
    assert run("--check", "--lock", path) == 2
    assert "is missing: take it from git" in capsys.readouterr().err
    assert run("--write", "--lock", path) == 0
    assert run("--check", "--lock", path) == 0
    data = json.loads(path.read_text())
    assert (data["version"], data["released"]) == (cutwheel.__version__, False)
    data["functions"]["gone"] = ["-> int"]
    path.write_text(json.dumps(data))
    capsys.readouterr()
    assert run("--check", "--lock", path) == 1
    assert "breaks  function gone: removed" in capsys.readouterr().err
    assert run("--release", "--lock", path) == 1
    assert json.loads(path.read_text()) == data
    assert run("--write", "--lock", path) == 0
    assert run("--release", "--lock", path) == 0
    assert json.loads(path.read_text())["released"] is True
    assert run("--check", "--lock", path) == 0


def test_a_pre_release_gets_no_mark(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.write_text(Lock("0.2.0rc1", False, OLD).text())
    (text,) = schema_lock.mark_released(path, OLD, "0.2.0rc1")
    assert "promises nothing" in text
    assert not schema_lock.read(path).released


def test_a_package_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "cutwheel", None)
    assert run("--check") == 2
    assert "cutwheel" in capsys.readouterr().err


def test_the_lock_is_that_of_the_package(cutwheel: ModuleType) -> None:
    found = problems(
        schema_lock.read(schema_lock.LOCK), schema_lock.collect(cutwheel), cutwheel.__version__
    )
    if found:
        pytest.fail("\n\n".join(found), pytrace=False)
