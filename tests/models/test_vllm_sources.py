"""What the plugin for vLLM expects, in the sources of the vLLM that is there: nothing is imported.

vLLM's modules import much that a machine without GPUs lacks. Signatures, base classes and lists can
be read, and compared with those of the plugin's own source and of the double of test_vllm.py.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
KERNELS = HERE.parents[1] / "python" / "cutwheel" / "models" / "_vllm_kernels.py"
DOUBLE = HERE / "vllm_double.py"
BASES = {
    "FP8ScaledMMLinearKernel": "scaled_mm/ScaledMMLinearKernel.py",
    "Fp8BlockScaledMMLinearKernel": "scaled_mm/BlockScaledMMLinearKernel.py",
    "CutlassInt8ScaledMMLinearKernel": "scaled_mm/cutlass.py",
}
CONFIGS = ("FP8ScaledMMLinearLayerConfig", "Int8ScaledMMLinearLayerConfig")
"""names of vLLM's that the double has, too"""


@functools.cache
def root() -> Path:
    """vLLM's folder; find_spec imports nothing of it."""
    found = importlib.util.find_spec("vllm")
    if found is None or not found.submodule_search_locations:
        pytest.skip("vLLM is not installed")
    return Path(found.submodule_search_locations[0])


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def linear(name: str = "__init__.py") -> ast.Module:
    return parsed(root() / "model_executor" / "kernels" / "linear" / name)


def class_of(module: ast.Module, name: str) -> ast.ClassDef:
    (found,) = [n for n in module.body if isinstance(n, ast.ClassDef) and n.name == name]
    return found


def parameters(node: ast.FunctionDef) -> list[str]:
    given = node.args
    every = [*given.posonlyargs, *given.args, *given.kwonlyargs]
    names = [each.arg for each in every]
    return [name for name in names if name not in ("self", "cls")]


def methods(node: ast.ClassDef) -> dict[str, ast.FunctionDef]:
    return {each.name: each for each in node.body if isinstance(each, ast.FunctionDef)}


def fields(node: ast.ClassDef) -> list[str]:
    return [
        each.target.id
        for each in node.body
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    ]


def everything(name: str) -> dict[str, ast.FunctionDef]:
    """Methods of a base class of the plugin's, with those that it has from vLLM's others."""
    where = {
        **BASES,
        "Int8ScaledMMLinearKernel": "scaled_mm/ScaledMMLinearKernel.py",
        "ScaledMMLinearKernel": "scaled_mm/ScaledMMLinearKernel.py",
        "MMLinearKernel": "base.py",
    }
    node = class_of(linear(where[name]), name)
    found: dict[str, ast.FunctionDef] = {}
    for base in reversed(node.bases):
        base = base.value if isinstance(base, ast.Subscript) else base
        if isinstance(base, ast.Name) and base.id in where:
            found |= everything(base.id)
    return found | methods(node)


def is_abstract(node: ast.FunctionDef) -> bool:
    return any(isinstance(d, ast.Name) and d.id == "abstractmethod" for d in node.decorator_list)


def ours() -> dict[str, ast.ClassDef]:
    """By their base classes."""
    found = {}
    for node in parsed(KERNELS).body:
        if isinstance(node, ast.ClassDef):
            (base,) = node.bases
            assert isinstance(base, ast.Name)
            found[base.id] = node
    return found


def test_the_plugin_derives_from_the_classes_that_are_compared() -> None:
    assert {*ours()} == {*BASES}


@pytest.mark.parametrize("base", BASES)
def test_methods_are_those_of_the_base_class(base: str) -> None:
    theirs, own = everything(base), methods(ours()[base])
    for name, node in own.items():
        assert name in theirs, name
        assert parameters(node) == parameters(theirs[name]), name
    missing = [name for name, node in theirs.items() if is_abstract(node) and name not in own]
    assert not missing


@pytest.mark.parametrize("base", BASES)
def test_the_double_has_vllms_signatures(base: str) -> None:
    double = methods(class_of(parsed(DOUBLE), base))
    theirs = everything(base)
    for name, node in double.items():
        assert parameters(node) == parameters(theirs[name]), name


def test_registering_is_as_the_plugin_does_it() -> None:
    module = linear()
    (register,) = [
        node
        for node in module.body
        if isinstance(node, ast.FunctionDef) and node.name == "register_linear_kernel"
    ]
    assert parameters(register) == ["kernel_class", "platform", "kernel_type"]
    lists = {
        node.target.id: ast.unparse(node.value or ast.Constant(None))
        for node in module.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    text = ast.unparse(register)
    for kind, name in (
        ("fp8", "_POSSIBLE_FP8_KERNELS"),
        ("fp8_block", "_POSSIBLE_FP8_BLOCK_KERNELS"),
        ("int8", "_POSSIBLE_INT8_KERNELS"),
    ):
        assert "PlatformEnum.CUDA: [" in lists[name]
        branch = text.partition(f"kernel_type == '{kind}':")[2].partition("elif")[0]
        assert f"{name}[platform].append(kernel_class)" in branch


def test_names_that_the_plugin_imports_are_there() -> None:
    imported = [
        (node.module, alias.name)
        for node in parsed(KERNELS).body
        if isinstance(node, ast.ImportFrom) and node.level == 0
        if (node.module or "").partition(".")[0] == "vllm"
        for alias in node.names
    ]
    assert len(imported) >= 8
    for module, name in imported:
        assert module is not None
        place = root().joinpath(*module.split(".")[1:])
        if (place / f"{name}.py").exists():
            continue
        path = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
        assert re.search(rf"\b{name}\b", path.read_text()), (module, name)


@pytest.mark.parametrize("name", CONFIGS)
def test_fields_of_configurations(name: str) -> None:
    theirs = fields(class_of(linear("scaled_mm/ScaledMMLinearKernel.py"), name))
    assert {*fields(class_of(parsed(DOUBLE), name))} == {*theirs}


def test_the_cache_key_has_names_of_disabled_kernels() -> None:
    """Else what vLLM compiled without the plugin would be loaded with it."""
    module = parsed(root() / "envs.py")
    (factors,) = [
        node
        for node in module.body
        if isinstance(node, ast.FunctionDef) and node.name == "compile_factors"
    ]
    names = {n.value for n in ast.walk(factors) if isinstance(n, ast.Constant)}
    assert "VLLM_CACHE_ROOT" in names  # one that is ignored
    assert "VLLM_DISABLED_KERNELS" not in names
    text = (root() / "envs.py").read_text()
    assert '"VLLM_DISABLED_KERNELS": lambda' in text
