"""tests/types/public_api.py, which mypy checks, has every public name and does what it says."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path
from types import ModuleType

PROGRAM = Path(__file__).resolve().parents[1] / "types" / "public_api.py"


def test_every_public_name_is_used(cutwheel: ModuleType) -> None:
    tree = ast.parse(PROGRAM.read_text(encoding="utf-8"))
    used = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    wanted = {f"cutwheel.{name}" for name in cutwheel.__all__} - {
        *("cutwheel.nn", "cutwheel.errors", "cutwheel.inductor")
    }
    wanted |= {f"nn.{name}" for name in cutwheel.nn.__all__}
    wanted |= {f"inductor.{name}" for name in cutwheel.inductor.__all__}
    wanted |= {f"cutwheel.errors.{name}" for name in cutwheel.errors.__all__}
    assert wanted - used == set()


def test_types_are_shipped(cutwheel: ModuleType) -> None:
    assert Path(str(cutwheel.__file__)).with_name("py.typed").is_file()


def test_the_program_runs(cutwheel: ModuleType) -> None:
    specification = importlib.util.spec_from_file_location("public_api", PROGRAM)
    assert specification is not None
    assert specification.loader is not None
    program = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(program)
    program.main()
