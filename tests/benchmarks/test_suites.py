"""Declarations of the suites, on the CPU with synthetic timings: no GPU is needed."""

from __future__ import annotations

import argparse
import functools
import importlib.util
import json
import signal
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from synthetic_clock import SyntheticClock
from torch.nn import functional

cutwheel = pytest.importorskip("cutwheel", reason="needs the built package (make test builds it)")

from benchmarks import (  # noqa: E402
    compare,
    networks,
    problems,
    run,
    suites,
    transformer_models,
)
from benchmarks.compare import Limits  # noqa: E402
from benchmarks.problems import Model, Problem, Transposed, Volume  # noqa: E402
from benchmarks.report import record, tables  # noqa: E402
from benchmarks.suites import compiled, fused, host, limited  # noqa: E402
from benchmarks.suites import conv as conv_suite  # noqa: E402
from benchmarks.suites import grouped as grouped_suite  # noqa: E402
from benchmarks.suites import models as models_suite  # noqa: E402
from benchmarks.suites import scaled as scaled_suite  # noqa: E402
from benchmarks.suites import volumes as volumes_suite  # noqa: E402
from cutwheel.tuning import measure, shapes  # noqa: E402
from cutwheel.tuning.case import AGAIN, Case, Setting, SkippedError  # noqa: E402
from cutwheel.tuning.cases import conv, gemm, grouped, scaled  # noqa: E402
from cutwheel.tuning.measure import Operands  # noqa: E402
from cutwheel.tuning.shapes import Batched, Conv, Gemm, Grouped  # noqa: E402

Tensor = torch.Tensor
LAYER = Gemm(48, 40, 64)
PRODUCT = Gemm(48, 160, 512)
HEADS = Batched(3, 17, 9, 33)
EXPERTS = Grouped(9, 200, 64, 48)
STRIDED = Conv(2, 8, 7, 6, 16, 3, 3, 2, 1, 1)
DILATED = Conv(1, 5, 9, 8, 4, 3, 2, 1, 2, 2)
IMAGES = Model((2, 3, 32, 32))
BOTH = "tensorwise+rowwise"
L2_BYTES = {"mm": 1000, "fused": 8000, "scaled": 200_000, "grouped": 100_000}
L2_BYTES |= {"conv": 50_000, "volumes": 20_000}

PROBLEMS = {
    "mm": [Problem("mm", LAYER)],
    "addmm": [Problem("addmm", LAYER)],
    "bmm": [Problem("scores", HEADS), Problem("values", HEADS)],
    "fused": [Problem(group, LAYER) for group in problems.LAYERS],
    "scaled": [
        *(Problem(group, PRODUCT, BOTH) for group in ("fp8_fast", "fp8")),
        *(Problem(group, PRODUCT, group) for group in ("blockwise", "int8")),
        *(Problem("quantize", Gemm(256, 0, 512), name) for name in problems.QUANTIZE),
    ],
    "grouped": [
        Problem(group, EXPERTS, skew) for group in problems.EXPERTS for skew in problems.SKEWS
    ],
    "conv": [
        *(Problem(g, shape) for g in problems.DIRECTIONS for shape in (STRIDED, DILATED)),
        *(Problem(g, STRIDED._replace(groups=2)) for g in problems.IN_GROUPS[False]),
    ],
    "volumes": [
        *(Problem(g, Volume(1, 8, 4, 6, 5, 16, 2, 0)) for g in problems.VOLUMES[:2]),
        *(Problem(g, Volume(1, 8, 4, 6, 5, 16, 1, 1)) for g in problems.VOLUMES[2:]),
        Problem("transposed", Transposed(2, 16, 4, 5, 8, 3, 2, 1, 1)),
    ],
    # Those of torchvision only where that is.
    "models": [
        Problem("resnet50", IMAGES),
        Problem("video_decoder", Model((1, 16, 2, 3, 4))),
        Problem("unet_block", Model((2, 32, 8, 8))),
        Problem("image_decoder", Model((1, 4, 4, 4))),
        Problem("resnet50_training", Model((4, 3, 64, 64))),
    ],
}
if importlib.util.find_spec("transformers"):
    PROBLEMS["models"] += [
        Problem("llama", Model((2, 16))),
        Problem("llama_fp8", Model((2, 16))),
        Problem("llama_training", Model((1, 16))),
        Problem("qwen3_moe", Model((1, 16))),
        Problem("bert_large", Model((2, 16))),
        Problem("vit_l", Model((2, 3, 32, 32))),
    ]
HEADS_OF = {"num_attention_heads": 4, "num_hidden_layers": 1}
SMALL = {
    "llama": {"hidden_size": 128, "intermediate_size": 256, "num_key_value_heads": 2, **HEADS_OF},
    "qwen3_moe": {
        "hidden_size": 64,
        "moe_intermediate_size": 32,
        "num_experts": 8,
        "num_experts_per_tok": 2,
    },
    "bert_large": {"hidden_size": 64, "intermediate_size": 128, **HEADS_OF},
    "vit_l": {
        "hidden_size": 64,
        "intermediate_size": 128,
        "image_size": 32,
        "patch_size": 8,
        **HEADS_OF,
    },
}
EVERY = [(op, problem) for op, some in PROBLEMS.items() for problem in some]


def setting(op: str, problem: Problem, l2_bytes: int = 0, **more: Any) -> Setting:
    l2_bytes = l2_bytes or L2_BYTES.get(op, 1000)
    operands = Operands(torch.device("cpu"), l2_bytes)
    return Setting(problem.shape, operands, problem.variant, **more)


def case_of(op: str, problem: Problem, **more: Any) -> Case:
    return run.suite_of(op).groups[problem.group](setting(op, problem, **more))


def measured(op: str, problem: Problem, *each: float, **more: Any) -> dict[str, Any]:
    case = case_of(op, problem, **more)
    found = compare.compare(case, SyntheticClock(*each or (2e-3,)), Limits(), 0.1)
    return run.row(problem, case, found)


def one(op: str, group: str) -> Problem:
    return next(problem for problem in reversed(PROBLEMS[op]) if problem.group == group)


def spans_of(offs: Tensor) -> list[tuple[int, int]]:
    return measure.spans(offs.tolist())


@pytest.fixture(autouse=True)
def torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions of torch that a CPU does not have are made up."""
    # torch.compile looks all of torch's functions up once in a process, and keeps what it finds.
    torch._dynamo.trace_rules.get_torch_obj_rule_map()
    own = torch._scaled_mm

    def scaled_mm(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, **options: Any) -> Tensor:
        if scale_a.dim() != 2 or scale_a.shape[1] == 1:
            return own(a, b, scale_a, scale_b, **options)
        assert scale_a.stride() == (1, a.shape[0])
        kind = scale_b.shape[1] == b.shape[1]
        assert scale_b.stride() == ((b.shape[1], 1) if kind else (1, scale_b.shape[0]))
        return (measure.scaled(a, scale_a) @ measure.scaled(b, scale_b)).bfloat16()

    def scaled_grouped_mm(
        a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, **options: Any
    ) -> Tensor:
        assert options["out_dtype"] == torch.bfloat16
        assert isinstance(options["use_fast_accum"], bool)
        if a.is_meta:
            return a.new_empty(a.shape[0], b.shape[2], dtype=torch.bfloat16)
        parts = [
            a[first:last].float() @ b[g].float() * scale_a[first:last, None] * scale_b[g]
            for g, (first, last) in enumerate(spans_of(options["offs"]))
        ]
        return torch.cat(parts).bfloat16()

    def add_relu(x: Tensor, w: Tensor, z: Tensor, alpha: float, b: Tensor, *where: Any) -> Tensor:
        *geometry, groups = where
        assert (alpha, groups) == (1.0, 1)
        return torch.relu(functional.conv2d(x, w, b, *geometry) + z)

    monkeypatch.setattr(torch, "_scaled_mm", scaled_mm)
    monkeypatch.setattr(torch, "_scaled_grouped_mm", scaled_grouped_mm)
    monkeypatch.setattr(torch, "cudnn_convolution_add_relu", add_relu)
    monkeypatch.setattr(torch.backends.cuda, "preferred_blas_library", lambda name=None: "cublas")
    narrow = {"resnet50": 8, "video_decoder": 8, "unet_block": 32, "image_decoder": 8}
    monkeypatch.setattr(models_suite, "WIDTHS", narrow)
    monkeypatch.setattr(models_suite, "OPTIONS", SMALL)


@pytest.fixture(autouse=True)
def ours(cpu_ops: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package's own functions, on kernels that compute by torch; mm writes with out= there."""
    for op in ("mm", "addmm", "bmm"):
        monkeypatch.setattr(cutwheel, op, getattr(torch, op))
    monkeypatch.setattr(cutwheel, "explain", lambda *_, **__: SimpleNamespace(row="a_kernel"))
    answer = {"plans": [{"row": "a_kernel"}]}
    for module in (gemm, scaled, grouped, conv, volumes_suite):
        monkeypatch.setattr(module, "explained", lambda *_: answer)


# --- every group


def test_groups_of_problems_are_those_of_suites() -> None:
    for op, some in PROBLEMS.items():
        assert {problem.group for problem in some} <= set(run.suite_of(op).groups)
    assert set(problems.LAYERS) == set(fused.SUITE.groups)
    assert set(problems.EXPERTS) == set(grouped_suite.SUITE.groups)
    in_groups = {group for groups in problems.IN_GROUPS.values() for group in groups}
    assert {*problems.DIRECTIONS, *in_groups} == set(conv_suite.SUITE.groups)
    assert {*problems.VOLUMES, "transposed"} == set(volumes_suite.SUITE.groups)
    assert set(problems.COMPILED["models"]) == set(models_suite.SUITE.groups)
    assert set(problems.QUANTIZE) == set(scaled_suite.QUANTIZE)
    assert {*problems.SCALED, "quantize"} == set(scaled_suite.SUITE.groups)
    for op, groups in problems.COMPILED.items():
        assert set(groups) <= set(run.suite_of(op).groups)
        assert run.suite_of(op).compiled


@pytest.mark.parametrize(("op", "problem"), EVERY, ids=str)
def test_every_group_runs_and_is_right(op: str, problem: Problem) -> None:
    row = measured(op, problem, 2e-3)
    assert (row["status"], row["reason"]) == ("ok", "")
    most = 0.1 if op == "models" else 0.02  # behind many layers
    most = 0.5 if problem.group == "resnet50_training" else most  # and back, through signs of relu
    most = 0.3 if problem.group == "llama_fp8" else most
    assert all(provider["relative_error"] < most for provider in row["sides"].values())
    assert all(ratio["median"] == pytest.approx(1.0) for ratio in row["ratios"])
    assert row["ratios"]
    assert row["slots"] >= 2
    assert set(row["kernels"].values()) <= {"a_kernel"}
    assert bool(row["kernels"]) == (problem.group != "quantize" and op != "models")
    assert set(row["kernels"]) <= set(row["sides"])
    json.dumps(record.plain(row), allow_nan=False)


@pytest.mark.parametrize(("op", "problem"), EVERY, ids=str)
def test_torch_against_itself(op: str, problem: Problem) -> None:
    case = case_of(op, problem).against_itself()
    found = compare.compare(case, SyntheticClock(2e-3), Limits(), 0.1)
    assert found.status == "ok", found.reason
    assert found.ratios
    if problem.group != "overhead":
        assert all(ours.startswith(AGAIN) for ours, _ in found.ratios)
        assert not any("cutwheel" in provider.name for provider in case.providers)


def pairs_of(op: str, group: str, **more: Any) -> set[tuple[str, str]]:
    return {(r["side"], r["baseline"]) for r in measured(op, one(op, group), **more)["ratios"]}


def test_what_is_compared() -> None:
    assert pairs_of("mm", "mm") == {("cutwheel", "torch"), ("cutwheel", gemm.CUBLASLT)}
    assert pairs_of("addmm", "addmm") == {("cutwheel", "torch")}
    assert pairs_of("fused", "bias_gelu") == {
        ("cutwheel gelu", "eager"),
        ("cutwheel gelu", "addmm_activation"),
        ("cutwheel gelu_tanh", "addmm_activation"),
    }
    for group in ("training_gelu", "training_gated_silu", "gated_silu", "bias_residual"):
        assert pairs_of("fused", group) == {("cutwheel", "eager")}
    names = {"relu", "gelu", "gelu_tanh", "silu", "residual", "gelu, z stored"}
    assert pairs_of("fused", "overhead") == {(name, "bias") for name in names}
    modes = ("torch tensorwise", "torch rowwise")
    wanted = {(f"cutwheel {recipe}", mode) for recipe in BOTH.split("+") for mode in modes}
    assert pairs_of("scaled", "fp8") == pairs_of("scaled", "fp8_fast") == wanted
    kinds = ("1x128 x 128x128", "1x128 x 1x128")
    assert pairs_of("scaled", "blockwise") == {(f"cutwheel {k}", f"torch {k}") for k in kinds}
    assert pairs_of("scaled", "int8") == {("cutwheel", "_int_mm + scaling")}
    assert pairs_of("scaled", "quantize") == {("cutwheel", "eager")}
    assert pairs_of("grouped", "gated") == {("cutwheel", "eager")}
    assert pairs_of("grouped", "wgrad") == {("cutwheel", "torch")}
    assert pairs_of("conv", "fused") == {
        ("cutwheel", "eager"),
        ("cutwheel", conv_suite.CUDNN_FUSED),
    }
    forms = case_of("fused", one("fused", "bias_gelu")).forms
    assert forms == {("cutwheel gelu", "addmm_activation"): "gelu_tanh"}


def test_operations_and_least_traffic() -> None:
    m, n, k = LAYER
    moved = {
        "bias_gelu": m * k + n * k + m * n,
        "bias_residual": m * k + n * k + 2 * m * n,
        "gated_silu": m * k + 2 * n * k + m * n,
        "training_gelu": 2 * (m * k + n * k + m * n),
        "training_gated_silu": 2 * (m * k + 2 * n * k + m * n),
    }
    for group, elements in moved.items():
        case = case_of("fused", Problem(group, LAYER))
        gemms = {"gated_silu": 2, "training_gelu": 3, "training_gated_silu": 6}.get(group, 1)
        assert (case.flops, case.min_bytes) == (gemms * 2 * m * n * k, 2 * elements), group
    row = measured("conv", one("conv", "fprop"), 3e-3, 2e-3)
    assert row["sides"]["cutwheel"]["tflops"] == pytest.approx(DILATED.flops / 2e-3 * 1e-12)
    assert row["ratios"][0]["median"] == pytest.approx(1.5)
    assert row["m"] == DILATED.n * DILATED.p * DILATED.q
    row = measured("scaled", one("scaled", "quantize"))
    assert row["sides"]["cutwheel"]["gbs"] > 0
    assert "tflops" not in row["sides"]["cutwheel"]
    few, more = (case_of("models", Problem("resnet50", Model((n, 3, 32, 32)))) for n in (2, 4))
    assert more.flops == 2 * few.flops > 0
    assert case_of("models", Problem("resnet50_training", IMAGES)).flops == 3 * few.flops


# --- wrong results

linear, gated_linear, fuse = cutwheel.linear, cutwheel.gated_linear, cutwheel.fuse
scaled_mm, quantize, grouped_mm = cutwheel.scaled_mm, cutwheel.quantize, cutwheel.grouped_mm
scaled_grouped_mm, conv2d = cutwheel.scaled_grouped_mm, cutwheel.conv2d
grouped_gated_linear = cutwheel.grouped_gated_linear


def without_activation(x: Any, w: Any, b: Any, activation: Any = None, residual: Any = None) -> Any:
    return linear(x, w, b, residual=residual)


def without_residual(x: Any, w: Any, b: Any, activation: Any = None, residual: Any = None) -> Any:
    return linear(x, w, b, activation=activation)


def up_as_gate(x: Tensor, weight: tuple[Tensor, Tensor], activation: str) -> Any:
    return gated_linear(x, weight[::-1], activation)


def without_scales(a: Any, b: Any, sa: Any, ra: Any, sb: Any, rb: Any, **more: Any) -> Any:
    return scaled_mm(a, b, sa, ra, torch.ones_like(sb), rb, **more)


def other_scales(x: Any, recipe: Any, dtype: Any) -> Any:
    found = quantize(x, recipe, dtype)
    return found[0], found[1] * 1.1


def other_rows(x: Any, recipe: Any, dtype: Any) -> Any:
    found = quantize(x, recipe, dtype)
    return found[0].view(torch.uint8).roll(1, 0).view(dtype), found[1]


def neighbours_weight(a: Tensor, b: Tensor, offs: Tensor) -> Any:
    return grouped_mm(a, b.roll(1, 0) if b.dim() == 3 else b.roll(1, 1), offs=offs)


def one_row_too_many(a: Tensor, b: Tensor, offs: Tensor) -> Any:
    return grouped_mm(a, b, offs=(offs + 1).clamp(max=int(offs[-1])))


def unscaled(a: Any, b: Any, scale_a: Any, scale_b: Any, **more: Any) -> Any:
    return scaled_grouped_mm(a, b, scale_a, scale_b=torch.ones_like(scale_b), **more)


def interleaved(x: Any, weight: Tensor, **more: Any) -> Any:
    return grouped_gated_linear(x, weight, interleaved=True, **more)


def permuted(*given: Any) -> Tensor:
    """A result written channels last and read as if it were not."""
    result = conv2d(*given)
    return result.permute(0, 2, 3, 1).contiguous().view(result.shape)


def other_order(x: Any, w: Any, b: Any, *where: Any, activation: Any, residual: Any) -> Any:
    """relu(conv + bias) + residual"""
    return conv2d(x, w, b, *where, activation=activation) + residual


def other_weights(model: torch.nn.Module) -> Any:
    made = fuse(model)
    parameter = max(made.parameters(), key=lambda each: each.numel())
    torch.nn.init.normal_(parameter)
    return made


WRONG: list[tuple[str, str, str, Callable[..., Any]]] = [
    ("fused", "bias_gelu", "linear", without_activation),
    ("fused", "bias_residual", "linear", without_residual),
    ("fused", "training_gelu", "linear", without_activation),
    ("fused", "overhead", "linear", without_activation),
    ("fused", "overhead", "linear", without_residual),
    ("fused", "gated_silu", "gated_linear", up_as_gate),
    ("fused", "training_gated_silu", "gated_linear", up_as_gate),
    *(("scaled", group, "scaled_mm", without_scales) for group in ("fp8", "fp8_fast", "int8")),
    ("scaled", "blockwise", "scaled_mm", without_scales),
    ("scaled", "quantize", "quantize", other_scales),
    ("scaled", "quantize", "quantize", other_rows),
    *(("grouped", g, "grouped_mm", neighbours_weight) for g in ("forward", "dgrad", "wgrad")),
    *(("grouped", g, "grouped_mm", one_row_too_many) for g in ("forward", "dgrad", "wgrad")),
    ("grouped", "fp8", "scaled_grouped_mm", unscaled),
    ("grouped", "gated", "grouped_gated_linear", interleaved),
    ("conv", "fprop", "conv2d", permuted),
    ("conv", "fused", "conv2d", other_order),
]


def assert_wrong(row: dict[str, Any]) -> None:
    assert row["status"] == "failed"
    assert "wrong result" in row["reason"]
    assert row["ratios"] == []


@pytest.mark.parametrize(
    ("op", "group", "name", "wrong"), WRONG, ids=[f"{w[1]}-{w[3].__name__}" for w in WRONG]
)
def test_a_wrong_formula_is_a_failure(
    op: str, group: str, name: str, wrong: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cutwheel, name, wrong)
    assert_wrong(measured(op, one(op, group)))


def test_wrong_gradients_of_convolutions_are_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    dgrad, wgrad = conv.our_dgrad, conv.our_wgrad
    monkeypatch.setattr(conv, "our_dgrad", lambda *given: dgrad(*given).roll(1, -1))
    monkeypatch.setattr(conv, "our_wgrad", lambda dy, x, *more: wgrad(dy[:1], x[:1] * 2, *more))
    for group in ("dgrad", "wgrad"):
        assert_wrong(measured("conv", Problem(group, STRIDED)))


def test_a_resnet_of_other_weights_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutwheel, "fuse", other_weights)
    for group in ("resnet50", "video_decoder"):
        assert measured("models", one("models", group))["status"] == "failed"


def test_a_training_step_of_other_convolutions_is_a_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    conv2d = cutwheel.nn.conv.conv2d
    monkeypatch.setattr(
        cutwheel.nn.conv, "conv2d", lambda *given, **more: torch.tanh(conv2d(*given, **more))
    )
    assert_wrong(measured("models", one("models", "resnet50_training")))


def test_models_of_transformers_are_optional(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(SkippedError, match="needs transformers"):
        case_of("models", Problem("llama", Model((1, 16))))


def test_attention_of_fewer_heads_of_keys_is_counted() -> None:
    pytest.importorskip("transformers")
    batch, tokens, options = 2, 64, SMALL["llama"]
    model = transformer_models.make("llama", "cpu", torch.float32, options)
    assert options["num_key_value_heads"] < options["num_attention_heads"]
    weights = sum(m.weight.numel() for m in model.modules() if isinstance(m, torch.nn.Linear))
    # Scores, and what they weigh, of all heads together.
    attention = 2 * 2 * batch * tokens**2 * options["hidden_size"]
    found = models_suite.operations("llama", model, (torch.randint(9, (batch, tokens)),))
    assert 1 <= found / (2 * batch * tokens * weights + attention) < 1.001  # and positions


def test_what_models_are_compared_with() -> None:
    pytest.importorskip("transformers")
    compiled = {"compiled": lambda function: function}
    for group, names in (
        ("unet_block", {"cutwheel", "cutwheel, compiled"}),
        ("llama", {"cutwheel", "cutwheel, compiled", "cutwheel, enabled"}),
        ("llama_fp8", {"cutwheel", "cutwheel, compiled"}),
        ("llama_training", {"cutwheel", "cutwheel, compiled"}),
    ):
        found = pairs_of("models", group, **compiled)
        assert found == {(side, base) for side in names for base in ("eager", "compile")}


def test_models_that_are_compiled_with_the_pass() -> None:
    both = {"compiled": lambda function: function, "passed": lambda function: function}
    names = {"cutwheel", "cutwheel, compiled"}
    found = pairs_of("models", "unet_block", **both)
    assert {side for side, _ in found} == {*names, "cutwheel, pass"}
    assert {side for side, _ in pairs_of("models", "resnet50", **both)} == names
    row = measured("models", one("models", "unet_block"), **both | {"passed": lambda _: refuse})
    assert {ratio["side"] for ratio in row["ratios"]} == names
    assert row["reason"] == "cutwheel, pass: RuntimeError: no such kernel"


def test_models_without_what_is_told_are_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model whose layers compute something else; and one in fp8 as badly as in 4 bits."""
    pytest.importorskip("transformers")
    replace = cutwheel.replace_layers

    def other(model: torch.nn.Module, *given: Any, **more: Any) -> Any:
        report = replace(model, *given, **more)
        for module in model.modules():
            if type(module).__name__.startswith(("GatedMLP", "ScaledLinear", "Linear")):
                for tensor in module.state_dict().values():
                    if tensor.dim() == 2 and tensor.dtype == torch.bfloat16:
                        tensor.mul_(1.5)
                if isinstance(module, cutwheel.nn.ScaledLinear):
                    module.weight_scale.mul_(1.5)
        return report

    monkeypatch.setattr(cutwheel, "replace_layers", other)
    for group in ("llama", "llama_fp8", "bert_large", "vit_l", "unet_block"):
        assert_wrong(measured("models", one("models", group)))


def test_experts_of_others_are_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    from cutwheel.models import experts

    own = experts.grouped_gated_linear
    monkeypatch.setattr(
        experts, "grouped_gated_linear", lambda x, w, **more: own(x, w.roll(1, 0), **more)
    )
    assert_wrong(measured("models", one("models", "qwen3_moe")))


def test_a_training_step_of_other_layers_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    dense = importlib.import_module("cutwheel.nn.dense")
    own = dense.linear
    monkeypatch.setattr(dense, "linear", lambda *given, **more: torch.tanh(own(*given, **more)))
    assert_wrong(measured("models", one("models", "llama_training")))


def test_operations_of_models_of_transformers() -> None:
    """Of linear layers, two for each multiplication: torch's counter leaves out attention on the
    CPU."""
    pytest.importorskip("transformers")
    case = case_of("models", Problem("qwen3_moe", Model((1, 16))))
    assert case.flops == 2 * 16 * 64 * 8 + 2 * 16 * 2 * 3 * 64 * 32  # the router, two experts each
    case = case_of("models", Problem("llama", Model((1, 16))))
    weights = 128 * (128 + 2 * 64 + 128) + 3 * 128 * 256 + 128 * 4096
    assert case.flops == 2 * 16 * weights
    again = case_of("models", Problem("llama_training", Model((1, 16))))
    assert again.flops == 3 * case.flops


def test_roundings_to_fp8_are_those_of_fp8() -> None:
    x = torch.randn(5, 64)
    found = models_suite.rounded_to_fp8(x)
    error = ((found - x).norm() / x.norm()).item()
    assert 0.005 < error < 0.05
    scale = x.abs().amax(1, keepdim=True) / 448
    assert torch.equal((found / scale).to(torch.float8_e4m3fn).float() * scale, found)
    assert torch.equal(models_suite.rounded_to_fp8(torch.zeros(2, 8)), torch.zeros(2, 8))


def test_models_of_torchvision(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Problem("mobilenet_v3_l", Model((2, 3, 64, 64)))

    def missing(name: str) -> Any:
        raise ImportError("no torchvision")

    monkeypatch.setattr(networks, "_of_torchvision", missing)
    with pytest.raises(SkippedError, match="needs torchvision"):
        case_of("models", problem)
    monkeypatch.undo()
    pytest.importorskip("torchvision")
    assert set(problems.MODELS) == {"resnet50", *networks.NAMES}
    for name in networks.NAMES:
        model = networks.make(name, 32, "cpu", torch.float32)
        x = networks.images(2, 32, "cpu", torch.float32)
        with torch.no_grad():
            assert torch.equal(model(x), networks.make(name, 32, "cpu", torch.float32)(x))
            assert model(x).std() > 0


def test_the_fused_model_is_compiled_too() -> None:
    refused: list[Any] = []

    def compiled_once(function: Any) -> Any:
        """The second one is refused."""
        refused.append(function)
        return function if len(refused) % 2 else refuse

    names = {"cutwheel", "cutwheel, compiled"}
    row = measured("models", one("models", "resnet50"), compiled=lambda function: function)
    assert {ratio["side"] for ratio in row["ratios"]} == names
    assert {ratio["baseline"] for ratio in row["ratios"]} == {"eager", "compile"}
    row = measured("models", one("models", "resnet50"), compiled=compiled_once)
    assert {ratio["side"] for ratio in row["ratios"]} == {"cutwheel"}
    assert row["reason"] == "cutwheel, compiled: RuntimeError: no such kernel"


def test_cases_that_take_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit of the case ends a compilation, too, whose own errors leave out a baseline."""
    problem, before = Problem("mm", LAYER), signal.getsignal(signal.SIGALRM)

    def slowly(*given: Any) -> Any:
        try:
            limited(lambda: time.sleep(5), 3.0)()
        except Exception as error:
            raise RuntimeError("left out") from error

    clock: Any = SyntheticClock(2e-3)
    (row,) = run.measure([problem], slowly, clock, Limits(), most_seconds=0.1)
    assert (row["status"], row["reason"]) == (
        "failed",
        "CaseTimeout: the case took more than 0.1 s",
    )
    time.sleep(0.05)
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0
    assert signal.getsignal(signal.SIGALRM) is before
    (row,) = run.measure([problem], lambda p: case_of("mm", p), clock, Limits(), most_seconds=60.0)
    assert row["status"] == "ok"
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0


def test_a_limit_within_another_gives_its_time_back() -> None:
    with suites.time_limit(50.0, "all"):
        with pytest.raises(TimeoutError, match="a part took"), suites.time_limit(0.05, "a part"):
            time.sleep(5)
        assert 40 < signal.getitimer(signal.ITIMER_REAL)[0] < 50
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0


def test_compilations_that_take_too_long() -> None:
    def slowly() -> int:
        time.sleep(5)
        return 1

    call = limited(slowly, 0.05)
    with pytest.raises(RuntimeError, match="took more than"):
        call()
    assert limited(lambda x: x + 1, 60)(1) == 2
    assert signal.getsignal(signal.SIGALRM) == signal.SIG_DFL


def test_a_wrong_side_among_others_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one whose baseline torch does not have."""

    def one_kind(a: Any, b: Any, sa: Any, ra: Any, sb: Any, rb: Any, **more: Any) -> Any:
        result = scaled_mm(a, b, sa, ra, sb, rb, **more)
        return result * 1.1 if rb == "blockwise_128x128" else result

    monkeypatch.setattr(cutwheel, "scaled_mm", one_kind)
    row = measured("scaled", Problem("blockwise", Gemm(48, 160, 384), "blockwise"))
    assert row["status"] == "failed"


# --- what torch does not have


def refuse(*_: Any, **__: Any) -> Any:
    raise RuntimeError("no such kernel\nand advice")


@pytest.mark.parametrize(
    ("op", "group", "module", "name", "left"),
    [
        ("conv", "fused", conv_suite, "cudnn_fused", {"eager"}),
        ("fused", "bias_gelu", fused, "addmm_activation", {"eager"}),
    ],
)
def test_a_baseline_that_fails_is_left_out(
    op: str, group: str, module: Any, name: str, left: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, name, refuse)
    row = measured(op, one(op, group))
    assert {ratio["baseline"] for ratio in row["ratios"]} == left
    assert row["status"] == "ok"
    assert "RuntimeError: no such kernel" in row["reason"]
    assert "advice" not in row["reason"]


def test_a_baseline_without_cublaslt_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def preferred(name: str | None = None) -> str:
        return refuse() if name == "cublaslt" else "cublas"

    monkeypatch.setattr(torch.backends.cuda, "preferred_blas_library", preferred)
    row = measured("mm", one("mm", "mm"))
    assert row["status"] == "ok"
    assert row["reason"] == f"{gemm.CUBLASLT}: RuntimeError: no such kernel"


def test_cublaslt_is_set_for_its_side_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def preferred(name: str | None = None) -> str:
        if name:
            seen.append(name)
        return "as before"

    monkeypatch.setattr(torch.backends.cuda, "preferred_blas_library", preferred)
    measured("addmm", one("addmm", "addmm"))
    assert seen == []
    measured("mm", one("mm", "mm"))
    assert seen == ["cublaslt", "as before"] * (len(seen) // 2) != []


def test_torch_may_refuse_one_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    own = scaled.torch_scaled_mm

    def only_tensors(x: Tensor, w: Tensor, scale_x: Tensor, *rest: Any) -> Tensor:
        found: Tensor = own(x, w, scale_x, *rest) if scale_x.dim() == 1 else refuse()
        return found

    monkeypatch.setattr(scaled, "torch_scaled_mm", only_tensors)
    row = measured("scaled", one("scaled", "fp8"))
    assert row["status"] == "ok"
    assert row["reason"] == "torch rowwise: RuntimeError: no such kernel"
    assert {ratio["baseline"] for ratio in row["ratios"]} == {"torch tensorwise"}


@pytest.mark.parametrize("group", ["fp8", "blockwise"])
def test_torch_may_refuse_all(group: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaled, "torch_scaled_mm", refuse)
    row = measured("scaled", one("scaled", group))
    assert (row["status"], row["ratios"]) == ("ok", [])
    assert "no such kernel" in row["reason"]
    assert all("us" in provider for provider in row["sides"].values())
    monkeypatch.setattr(cutwheel, "scaled_mm", lambda *a, **k: scaled_mm(*a, **k) * 1.1)
    assert_wrong(measured("scaled", one("scaled", group)))


def test_a_gemm_whose_baselines_are_all_wrong_is_a_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = scaled.torch_scaled_mm
    monkeypatch.setattr(scaled, "torch_scaled_mm", lambda *operands: own(*operands) * 1.1)
    assert_wrong(measured("scaled", one("scaled", "fp8")))


def test_scales_that_torch_would_misread_are_left_out() -> None:
    problem = Problem("blockwise", Gemm(48, 160, 384), "blockwise")
    row = measured("scaled", problem)
    assert row["reason"].startswith("torch 1x128 x 128x128: K / 128 is 3")
    assert [ratio["side"] for ratio in row["ratios"]] == ["cutwheel 1x128 x 1x128"]
    providers = case_of("scaled", problem).against_itself().providers
    assert [provider.name for provider in providers] == [
        "torch 1x128 x 1x128",
        f"{AGAIN} 1x128 x 1x128",
    ]


def test_the_faster_mode_counts() -> None:
    # Providers: torch tensorwise, torch rowwise, ours tensorwise, ours rowwise.
    row = measured("scaled", one("scaled", "fp8"), 3e-3, 2e-3, 1e-3, 4e-3)
    found = {(ratio["side"], ratio["baseline"]): ratio for ratio in row["ratios"]}
    best = {ratio["side"]: ratio for ratio in tables.best_of(row)}
    assert best["cutwheel tensorwise"]["median"] == pytest.approx(2.0)
    assert best["cutwheel tensorwise"]["mode"] == "torch rowwise"
    assert best["cutwheel rowwise"]["median"] == pytest.approx(0.5)
    assert found["cutwheel tensorwise", "torch tensorwise"]["median"] == pytest.approx(3.0)


def test_one_recipe_alone_meets_both_modes() -> None:
    row = measured("scaled", one("scaled", "fp8")._replace(variant="rowwise"))
    assert {ratio["side"] for ratio in row["ratios"]} == {"cutwheel rowwise"}
    assert len(row["ratios"]) == 2


@pytest.mark.parametrize("m", [1, 16, 48])
def test_int_mm_gets_the_rows_it_wants(m: int, monkeypatch: pytest.MonkeyPatch) -> None:
    own, rows = torch._int_mm, []

    def int_mm(a: Tensor, b: Tensor) -> Tensor:
        rows.append(a.shape[0])
        return own(a, b)

    monkeypatch.setattr(torch, "_int_mm", int_mm)
    assert measured("scaled", Problem("int8", Gemm(m, 160, 512), "int8"))["status"] == "ok"
    assert set(rows) == {max(m, 32)}


def test_the_form_of_addmm_activation_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    for form in ("gelu", "gelu_tanh"):
        as_form = functools.partial(gemm.eager_linear, activation=form)
        monkeypatch.setattr(fused, "addmm_activation", as_form)
        assert fused.form_of_addmm_activation("cpu") == form


# --- torch.compile


@pytest.mark.parametrize(
    ("op", "group", "name"),
    [
        ("mm", "mm", "torch.compile, Triton"),
        *(("fused", group, "compile") for group in problems.COMPILED["fused"]),
        ("scaled", "int8", "_int_mm + compiled scaling"),
        ("scaled", "quantize", "compile"),
        *(("models", group, "compile") for group in ("resnet50_training", "image_decoder")),
    ],
)
def test_compile_is_one_more_baseline(op: str, group: str, name: str) -> None:
    row = measured(op, one(op, group), compiled=lambda function: function)
    assert name in {ratio["baseline"] for ratio in row["ratios"]}
    row = measured(op, one(op, group), compiled=lambda function: refuse)
    assert row["status"] == "ok"
    assert f"; {row['reason']}".endswith(f"; {name}: RuntimeError: no such kernel")


def test_errors_of_torch_compile_are_runtime_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_assertion(*operands: Any) -> Any:
        raise AssertionError("inside the compiler")

    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    with pytest.raises(RuntimeError, match="AssertionError: inside the compiler"):
        compiled(raise_assertion)(torch.ones(1))


# --- operands


def test_images_are_channels_last(monkeypatch: pytest.MonkeyPatch) -> None:
    strides: list[tuple[int, ...]] = []

    def seen(*given: Any) -> Any:
        strides.extend(tensor.stride() for tensor in given[:2])
        return conv2d(*given)

    monkeypatch.setattr(cutwheel, "conv2d", seen)
    measured("conv", Problem("fprop", STRIDED))
    assert set(strides) == {(8 * 7 * 6, 1, 8 * 6, 8), (72, 1, 24, 8)}


def test_what_convolutions_are_given() -> None:
    shape = DILATED._replace(stride=2)
    assert conv.geometry(shape) == [2, 2, 2, 2, 2, 2, 2, 2]
    x, w = torch.randn(shape.input), torch.randn(shape.filter)
    assert conv.torch_fprop(x, w, shape).shape == shape.output
    assert shape.elements == x.numel() + w.numel() + torch.Size(shape.output).numel()


def test_cudnn_is_tuned_and_tf32_allowed_for_their_sections() -> None:
    before = torch.backends.cudnn.benchmark, torch.backends.cuda.matmul.fp32_precision
    with conv_suite.SUITE.context(""), suites.gemm.SUITE.context("tf32"):
        assert torch.backends.cudnn.benchmark
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"
    assert before == (torch.backends.cudnn.benchmark, torch.backends.cuda.matmul.fp32_precision)


def test_empty_groups_of_wgrad(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch need not fill them, we have to."""
    own = torch._grouped_mm

    def leave_empty(a: Tensor, b: Tensor, offs: Tensor) -> Tensor:
        result = own(a, b, offs=offs)
        for g, (first, last) in enumerate(spans_of(offs)):
            if first == last:
                result[g] = float("nan")
        return result

    monkeypatch.setattr(grouped, "torch_grouped_mm", leave_empty)
    assert measured("grouped", one("grouped", "wgrad"))["status"] == "ok"
    monkeypatch.setattr(cutwheel, "grouped_mm", leave_empty)
    assert measured("grouped", one("grouped", "wgrad"))["status"] == "failed"


def test_of_large_results_some_groups_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouped, "CHECKED_BYTES", 3 * 4 * EXPERTS.n * EXPERTS.k)
    case = case_of("grouped", one("grouped", "wgrad"))
    assert [len(provider.reference(0)) for provider in case.providers if provider.reference] == [
        3,
        3,
    ]
    assert measured("grouped", one("grouped", "wgrad"))["status"] == "ok"


def test_references_are_exact() -> None:
    make = Operands(torch.device("cpu"), 1000)
    x, w = make.eight_bits(48, 512), make.eight_bits(160, 512)
    exact = x.float().double() @ w.float().double().t()
    torch.testing.assert_close(scaled.exact_matmul(x, w).double(), exact, rtol=1e-5, atol=1e-2)
    scales = make.scales(48, 4)
    found = measure.scaled(x, scales, torch.bfloat16).double()
    wide = x.float().double().view(48, 4, 128) * scales.double()[:, :, None]
    assert torch.equal(found.view(48, 4, 128), wide)


# --- memory


def test_buffers() -> None:
    of = setting("grouped", one("grouped", "forward"), l2_bytes=60 << 20)
    assert of.buffers(10 << 20, 1 << 20) == 14
    assert of.buffers(15 << 30, 1 << 20) == 2
    assert of.buffers(40 << 30, 1 << 20) == 1  # which L2 holds nothing of
    assert of.buffers(1 << 30, 14 << 30) == 1
    assert of.buffers(1 << 20, 2 << 30) == 2  # results are large, and 122 sets of them too many
    for too_much in ((70 << 30,), (20 << 30, 50 << 30)):
        with pytest.raises(SkippedError, match="GB"):
            of.buffers(*too_much)


def test_every_shape_of_the_lists_is_measured() -> None:
    of = setting("grouped", one("grouped", "forward"), l2_bytes=60 << 20)
    table = problems.load()
    for shape in shapes.listed(table, Grouped):
        weights, x, d = (
            2 * shape.groups * shape.n * shape.k,
            2 * shape.m * shape.k,
            2 * shape.m * shape.n,
        )
        assert of.buffers(weights + x, d) >= 2
        of.buffers(weights + x, d + d // 2)  # gated
        of.buffers(x + d, weights)  # wgrad
    for shape in shapes.listed(table, Gemm):
        m, n, k = shape
        assert of.buffers(shape.input_bytes(1), 2 * m * n, 4) >= 2
    for m, n, k in problems.layers(table):
        assert of.buffers(2 * (m * k + 2 * n * k), 2 * m * n, 3) >= 2
        assert of.buffers(2 * (m * k + n * k + m * n), 2 * m * n, 4) >= 2


@pytest.mark.parametrize("op", record.SECTIONS[:-1])
def test_drawn_problems_can_be_called(op: str) -> None:
    """As large as on a GPU, but of no values: operands, providers and references fit together."""
    given = argparse.Namespace(quick=True, shape=[], only="", drawn=6, seed=7)
    groups = run.suite_of(op).groups
    for problem in problems.of_section(op, given).drawn:
        make = Operands(torch.device("meta"), 50 << 20)
        with torch.no_grad():
            case = groups[problem.group](Setting(problem.shape, make, problem.variant))
            for provider in case.providers:
                found = measure.tensors_of(provider.call(case.buffers - 1))
                wanted = measure.tensors_of(
                    (provider.reference or case.reference)(case.buffers - 1)
                )
                assert [t.shape for t in found] == [t.shape for t in wanted], (
                    problem,
                    provider.name,
                )


def test_one_configuration_is_a_baseline_of_the_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "benchmarks.suites.one_configuration"
    monkeypatch.setitem(sys.modules, name, SimpleNamespace(NAME="one", mm=torch.mm))
    assert ("cutwheel", "one") not in pairs_of("mm", "mm")
    monkeypatch.setattr(cutwheel, "is_batch_invariant", lambda: True)
    assert ("cutwheel", "one") in pairs_of("mm", "mm")
    found = measured("mm", one("mm", "mm"))
    assert found["status"] == "ok"
    assert "one" in found["sides"]


# --- CPU time


@pytest.mark.parametrize("suite", [host, grouped_suite, conv_suite])
def test_cpu_time_compares_the_same(suite: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = suite.SUITE.host("cpu")
    assert len({case.name for case in cases}) == len(cases)
    for case in cases:
        assert compare.disagreement(case) < compare.HOST_TOLERANCE, case.name
