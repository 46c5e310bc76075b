"""Importing the package where there is no GPU, no driver, or no library."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

_ADDMM = "float beta=1., float alpha=1., bool allow_tf32=False"
_MM = "Tensor input, Tensor mat2"
_RESULT = "bool allow_tf32=False) -> Tensor"
_OUT = "*, Tensor(a!) out) -> ()"
_UP = "bool allow_tf32=False, Tensor? up=None"
_LINEAR = "Tensor input, Tensor weight, Tensor? bias, Tensor? residual"
_SCALED = (
    "Tensor mat_a, Tensor mat_b, Tensor? scale_a, Tensor? scale_b, Tensor? bias=None, "
    "Tensor? azp=None, Tensor? azp_adj=None"
)
_RECIPES = "int? scale_recipe_a=None, int? scale_recipe_b=None, bool use_fast_accum=False"
_GEMM = "Tensor a, Tensor b, str epilogue, Tensor?[] operands, float[] scalars"
_GROUPED = "Tensor mat_a, Tensor mat_b, Tensor offs"
_GROUPED_LINEAR = "Tensor input, Tensor weight, Tensor offs, Tensor? bias, str epilogue"
_WHERE = (
    "SymInt stride_h, SymInt stride_w, SymInt padding_top, SymInt padding_bottom, "
    "SymInt padding_left, SymInt padding_right, SymInt dilation_h, SymInt dilation_w"
)
_WHERE_3D = (
    "SymInt stride_d, SymInt stride_h, SymInt stride_w, SymInt padding_front, SymInt padding_back, "
    "SymInt padding_top, SymInt padding_bottom, SymInt padding_left, SymInt padding_right, "
    "SymInt dilation_d, SymInt dilation_h, SymInt dilation_w"
)
OPS = {
    "mm": f"({_MM}, ScalarType? out_dtype=None, {_RESULT}",
    "mm.out": f"({_MM}, bool allow_tf32=False, {_OUT}",
    "bmm": f"({_MM}, ScalarType? out_dtype=None, {_RESULT}",
    "bmm.out": f"({_MM}, bool allow_tf32=False, {_OUT}",
    "addmm": f"(Tensor input, Tensor mat1, Tensor mat2, ScalarType? out_dtype=None, {_ADDMM}) "
    "-> Tensor",
    "addmm.out": f"(Tensor input, Tensor mat1, Tensor mat2, {_ADDMM}, {_OUT}",
    "baddbmm": "(Tensor input, Tensor batch1, Tensor batch2, ScalarType? out_dtype=None, "
    f"{_ADDMM}) -> Tensor",
    "baddbmm.out": f"(Tensor input, Tensor batch1, Tensor batch2, {_ADDMM}, {_OUT}",
    "linear": f"(Tensor input, Tensor weight, Tensor? bias=None, {_RESULT}",
    "gated_input_gradient": f"(Tensor grad, Tensor weight, Tensor up, {_RESULT}",
    "linear_gradients": "(Tensor grad, Tensor input, Tensor weight, bool weight_is_column_major, "
    "bool allow_tf32=False) -> (Tensor, Tensor)",
    "linear_fused": f"({_LINEAR}, str epilogue, {_UP}) -> Tensor",
    "linear_fused.out": f"({_LINEAR}, str epilogue, {_UP}, *, Tensor(a!)[] out) -> ()",
    "linear_fused_aux": f"({_LINEAR}, str epilogue, {_UP}) -> (Tensor, Tensor)",
    "gemm": f"({_GEMM}, ScalarType? out_dtype=None, bool allow_tf32=False) -> Tensor[]",
    "gemm.out": f"({_GEMM}, bool allow_tf32=False, *, Tensor(a!)[] out) -> ()",
    "elementwise": "(Tensor[] operands, str epilogue, bool with_result=True, bool with_sums=False, "
    "bool in_halves=False) -> (Tensor, Tensor)",
    "scaled_mm": f"({_SCALED}, ScalarType? output_dtype=None, {_RECIPES}) -> Tensor",
    "scaled_mm.out": f"({_SCALED}, {_RECIPES}, {_OUT}",
    "quantize": "(Tensor x, int recipe, ScalarType dtype, bool symmetric=True) "
    "-> (Tensor, Tensor, Tensor)",
    "grouped_mm": f"({_GROUPED}, Tensor? bias=None, ScalarType? out_dtype=None, {_RESULT}",
    "grouped_mm_accumulate": f"({_GROUPED}, bool allow_tf32=False, {_OUT}",
    "grouped_linear_fused": f"({_GROUPED_LINEAR}, {_UP}) -> Tensor",
    "grouped_linear_fused_aux": f"({_GROUPED_LINEAR}, {_UP}) -> (Tensor, Tensor)",
    "scaled_grouped_mm": "(Tensor mat_a, Tensor mat_b, Tensor scale_a, Tensor scale_b, "
    "Tensor offs, Tensor? bias=None, ScalarType? output_dtype=None, bool use_fast_accum=False) "
    "-> Tensor",
    "conv2d": f"(Tensor input, Tensor weight, Tensor? bias, {_WHERE}, {_RESULT}",
    "conv2d_fused": "(Tensor input, Tensor weight, Tensor? bias, Tensor? residual, "
    f"{_WHERE}, str epilogue, {_RESULT}",
    "conv2d_fused_aux": "(Tensor input, Tensor weight, Tensor? bias, Tensor? residual, "
    f"{_WHERE}, str epilogue, bool allow_tf32=False) -> (Tensor, Tensor)",
    "conv2d_input_grad": "(Tensor grad_output, Tensor weight, SymInt input_h, SymInt input_w, "
    f"{_WHERE}, {_RESULT}",
    "conv2d_weight_grad": "(Tensor grad_output, Tensor input, SymInt weight_h, SymInt weight_w, "
    f"{_WHERE}, {_RESULT}",
    "conv2d_grouped": "(Tensor input, Tensor weight, Tensor? bias, Tensor? residual, "
    f"{_WHERE}, str epilogue) -> Tensor",
    "conv2d_grouped_input_grad": "(Tensor grad_output, Tensor weight, SymInt input_h, "
    f"SymInt input_w, {_WHERE}, SymInt groups) -> Tensor",
    "conv2d_grouped_weight_grad": "(Tensor grad_output, Tensor input, SymInt weight_h, "
    f"SymInt weight_w, {_WHERE}, SymInt groups) -> Tensor",
    "conv3d": f"(Tensor input, Tensor weight, Tensor? bias, {_WHERE_3D}, {_RESULT}",
    "conv3d_fused": "(Tensor input, Tensor weight, Tensor? bias, Tensor? residual, "
    f"{_WHERE_3D}, str epilogue, {_RESULT}",
    "conv3d_fused_aux": "(Tensor input, Tensor weight, Tensor? bias, Tensor? residual, "
    f"{_WHERE_3D}, str epilogue, bool allow_tf32=False) -> (Tensor, Tensor)",
    "conv3d_input_grad": "(Tensor grad_output, Tensor weight, SymInt input_d, SymInt input_h, "
    f"SymInt input_w, {_WHERE_3D}, {_RESULT}",
    "conv3d_weight_grad": "(Tensor grad_output, Tensor input, SymInt weight_d, SymInt weight_h, "
    f"SymInt weight_w, {_WHERE_3D}, {_RESULT}",
    "conv_transpose2d": "(Tensor input, Tensor weight, Tensor? bias, SymInt output_h, "
    f"SymInt output_w, {_WHERE}, str epilogue, {_RESULT}",
    "conv_transpose3d": "(Tensor input, Tensor weight, Tensor? bias, SymInt output_d, "
    f"SymInt output_h, SymInt output_w, {_WHERE_3D}, str epilogue, {_RESULT}",
    "scaled_conv2d": "(Tensor input, Tensor weight, Tensor scale_input, Tensor scale_weight, "
    f"Tensor? bias, {_WHERE}, ScalarType? out_dtype=None, Tensor? residual=None, "
    'Tensor? scale_residual=None, Tensor? scale_result=None, str activation="") -> Tensor',
}
FUNCTIONS = (
    "mm",
    "bmm",
    "addmm",
    "baddbmm",
    "linear",
    "matmul",
    "gated_linear",
    "gemm",
    "pack_gated_weight",
    "unpack_gated_weight",
    "scaled_mm",
    "quantize",
    "epilogues",
    "grouped_mm",
    "grouped_mm_list",
    "grouped_linear",
    "grouped_gated_linear",
    "scaled_grouped_mm",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "scaled_conv2d",
    "explain",
    "kernels",
    "build_info",
)


def run(package: ModuleType, code: str, **environment: str) -> str:
    """Runs `code` in a fresh Python that imports the same package and sees no GPU."""
    assert package.__file__ is not None
    folder = str(Path(package.__file__).parents[1])
    path = os.pathsep.join([folder, *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_sees_no_gpu(cutwheel: ModuleType) -> None:
    code = """
import torch, cutwheel
assert not torch.cuda.is_initialized()
a = torch.ones(2, 2)
try:
    cutwheel.mm(a.half(), a.half())
except NotImplementedError as error:
    print(error)
print(len(cutwheel.kernels()), cutwheel.build_info()["version"] == cutwheel.__version__)
"""
    lines = run(cutwheel, code).splitlines()
    assert "CPU" in lines[0]
    assert "cutwheel." not in lines[0]
    assert lines[1].endswith("True")


def test_import_is_quick_and_light(cutwheel: ModuleType) -> None:
    """In CPU time, against a loop that takes 0.04 s: machines differ, and their load changes."""
    code = """
import gc, time, sys, torch, json
before = set(sys.modules)
gc.disable()  # a pass over all that torch has made takes 0.14 s, and falls into any import
start = time.process_time()
sum(i * i for i in range(1_000_000))
middle = time.process_time()
import cutwheel
end = time.process_time()
print(json.dumps([(end - middle) / (middle - start), sorted(set(sys.modules) - before)]))
"""
    ratios = []
    for _ in range(3):
        ratio, modules = json.loads(run(cutwheel, code))
        ratios.append(ratio)
        heavy = [name for name in modules if not name.startswith("cutwheel")]
        assert not [name for name in heavy if name.startswith(("torch._dynamo", "torch._inductor"))]
    assert min(ratios) <= 4, ratios  # 2 to 3


@pytest.mark.parametrize("op", OPS)
def test_schema(cutwheel: ModuleType, op: str) -> None:
    import torch

    name, _, overload = op.partition(".")
    schema = str(getattr(getattr(torch.ops.cutwheel, name), overload or "default")._schema)
    assert schema.replace("1.,", "1,") == f"cutwheel::{op}{OPS[op]}".replace("1.,", "1,")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_documented(cutwheel: ModuleType, name: str) -> None:
    function = getattr(cutwheel, name)
    assert function.__doc__
    assert name in cutwheel.__all__
    assert function.__annotations__["return"]


_TORCHS_SCALED = (
    *("mat_a", "mat_b", "scale_a", "scale_recipe_a", "scale_b", "scale_recipe_b"),
    *("swizzle_a", "swizzle_b"),
)


def test_parameters_are_named_as_torchs(cutwheel: ModuleType) -> None:
    import inspect

    names = {op: list(inspect.signature(getattr(cutwheel, op)).parameters) for op in FUNCTIONS[:25]}
    fused = ["activation", "residual", "residual_after_activation"]
    where = ["stride", "padding", "dilation"]
    conv = ["input", "weight", "bias", *where, "groups", *fused]
    transposed = ["input", "weight", "bias", "stride", "padding", "output_padding", "groups"]
    transposed += ["dilation", *fused]
    assert names == {
        "mm": ["input", "mat2", "out_dtype", "out"],
        "bmm": ["input", "mat2", "out_dtype", "out"],
        "addmm": ["input", "mat1", "mat2", "out_dtype", "beta", "alpha", "out"],
        "baddbmm": ["input", "batch1", "batch2", "out_dtype", "beta", "alpha", "out"],
        "linear": [
            *("input", "weight", "bias", "activation", "residual", "residual_after_activation"),
        ],
        "matmul": ["input", "other"],
        "gated_linear": ["input", "weight", "activation", "bias", "interleaved"],
        "gemm": ["a", "b", "epilogue", "out_dtype", "out", "operands"],
        "pack_gated_weight": ["gate", "up"],
        "unpack_gated_weight": ["weight"],
        "scaled_mm": [
            *(*_TORCHS_SCALED, "bias", "output_dtype", "contraction_dim", "use_fast_accum"),
            *("azp", "azp_adj", "out"),
        ],
        "quantize": ["x", "recipe", "dtype", "symmetric"],
        "epilogues": [],
        "grouped_mm": ["mat_a", "mat_b", "offs", "bias", "out_dtype", "accumulate_into"],
        "grouped_mm_list": ["As", "Bs", "biases"],
        "grouped_linear": ["input", "weight", "offs", "bias", "activation"],
        "grouped_gated_linear": ["input", "weight", "offs", "activation", "interleaved"],
        "scaled_grouped_mm": [
            *(*_TORCHS_SCALED, "bias", "offs"),
            *("output_dtype", "contraction_dim", "use_fast_accum"),
        ],
        **dict.fromkeys(("conv1d", "conv2d", "conv3d"), conv),
        **{f"conv_transpose{dims}d": transposed for dims in (1, 2, 3)},
        "scaled_conv2d": [
            *("input", "weight", "scale_input", "scale_weight", "bias", *where, "out_dtype"),
            *("activation", "residual", "scale_residual", "scale_result"),
        ],
    }
    linear = inspect.signature(cutwheel.linear).parameters
    assert linear["activation"].kind is inspect.Parameter.KEYWORD_ONLY


def test_everything_public_is_there(cutwheel: ModuleType) -> None:
    assert sorted(cutwheel.__all__, key=str.lower) == sorted(set(cutwheel.__all__), key=str.lower)
    for name in cutwheel.__all__:
        assert hasattr(cutwheel, name)


def test_typed_marker(cutwheel: ModuleType) -> None:
    assert cutwheel.__file__ is not None
    assert Path(cutwheel.__file__).with_name("py.typed").is_file()


def test_kernels_are_those_of_the_manifest(cutwheel: ModuleType) -> None:
    assert cutwheel.__file__ is not None
    path = Path(cutwheel.__file__).with_name("manifest.json")
    if not path.is_file():
        pytest.skip("the package has no manifest.json")
    declared = {kernel["name"]: kernel for kernel in json.loads(path.read_text())["kernels"]}
    rows = {kernel.name: kernel for kernel in cutwheel.kernels()}
    assert set(rows) == set(declared)
    for name, row in rows.items():
        for key in (
            *("op", "family", "arch", "ptx", "a", "b", "acc", "d", "schedule", "swap_ab"),
            *("fast_accum", "scales", "recipe", "grouping"),
        ):
            assert getattr(row, key) == declared[name][key], (name, key)


def test_library_of_a_missing_file(cutwheel: ModuleType, tmp_path: Path) -> None:
    import shutil

    assert cutwheel.__file__ is not None
    ignore = shutil.ignore_patterns("_C.so", "__pycache__")
    shutil.copytree(Path(cutwheel.__file__).parent, tmp_path / "cutwheel", ignore=ignore)
    code = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
try:
    import cutwheel
except ImportError as error:
    print(error)
"""
    text = run(cutwheel, code)
    assert "op library is missing" in text
    assert "_C.so" in text
