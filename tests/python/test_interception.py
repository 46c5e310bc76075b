"""enable(), disable(), enabled() and report(), where no GPU is needed: at the CPU's dispatch key,
where every call goes on to torch's kernel, and the decision as a function of a problem."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import cutwheel
from cutwheel import interception

ALL = [*interception.OPS, *interception.BY_NAME]
# Without torch's libraries for CUDA there is no kernel of it.
NOT_ON_THE_CPU = {"_scaled_grouped_mm"}
OVERLOADS = [
    overload
    for op, overloads in (interception.OPS | interception.BY_NAME).items()
    for overload in overloads
    if op not in NOT_ON_THE_CPU
]
TAKEN = tuple(name for name in OVERLOADS if not name.startswith("addmm"))


@pytest.fixture(autouse=True)
def at_the_cpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(interception, "_key", "CPU")
    cutwheel.report(clear=True)
    yield
    cutwheel.disable()
    cutwheel.report(clear=True)


def registered(op: str, key: str = "CPU") -> str:
    """Where the kernel of an op at a key was registered, the current one first."""
    lines = torch._C._dispatch_dump(f"aten::{op}").splitlines()
    return next(line for line in lines if line.startswith((f"{key}:", f"{key} ")))


def dumps() -> list[str]:
    return [torch._C._dispatch_dump(f"aten::{overload}") for overload in OVERLOADS]


def test_ops_go_to_torch_again_as_they_were() -> None:
    before = dumps()
    cutwheel.enable(ops=ALL)
    for overload in TAKEN:
        assert "register.cpp" in registered(overload), overload
    assert "interception.py" in registered("addmm")
    assert set(cutwheel.report().enabled) == set(OVERLOADS)
    cutwheel.enable()
    assert cutwheel.report().enabled == TAKEN
    assert "interception.py" not in registered("addmm")
    cutwheel.disable()
    assert cutwheel.report().enabled == ()
    assert before == dumps()


def test_nothing_is_patched_at_import() -> None:
    code = "import torch, cutwheel; print('intercept' in torch._C._dispatch_dump('aten::mm'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("ops", [None, ["addmm"]])
def test_enabling_is_silent(ops: list[str] | None) -> None:
    code = (
        "import cutwheel; from cutwheel import interception; interception._key = 'CPU'\n"
        f"cutwheel.enable(ops={ops}); print(cutwheel.report().enabled)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "mm.out" in done.stdout
    assert "Overriding" not in done.stderr


SAMPLES = [
    *("mm", "bmm", "addmm", "nn.functional.linear"),
    *("nn.functional.conv1d", "nn.functional.conv2d", "nn.functional.conv3d"),
    *("nn.functional.conv_transpose1d", "nn.functional.conv_transpose2d"),
]


@pytest.mark.parametrize("op", SAMPLES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.complex64])
def test_samples_of_torch_have_the_same_results(
    torchs_samples: Callable[[str], Any], op: str, dtype: torch.dtype
) -> None:
    info = torchs_samples(op)
    if dtype not in info.supported_dtypes("cpu"):
        pytest.skip("torch has no such kernel")
    needs_grad = dtype.is_floating_point or dtype.is_complex
    for sample in info.sample_inputs("cpu", dtype, requires_grad=needs_grad):
        want = info(sample.input, *sample.args, **sample.kwargs)
        with cutwheel.enabled(ops=ALL):
            got = info(sample.input, *sample.args, **sample.kwargs)
        assert torch.equal(got, want)
        assert got.stride() == want.stride()
        if needs_grad and want.numel() and want.requires_grad:
            given = (sample.input, *sample.args)
            inputs = [x for x in given if isinstance(x, torch.Tensor) and x.requires_grad]
            wanted = torch.autograd.grad(want.abs().sum(), inputs, allow_unused=True)
            with cutwheel.enabled(ops=ALL):
                found = torch.autograd.grad(got.abs().sum(), inputs, allow_unused=True)
            for one, other in zip(found, wanted, strict=True):
                assert (one is None) is (other is None)
                assert one is None or torch.equal(one, other)
    assert cutwheel.report().passed_on > 0


def both(call: Callable[[], Any], **narrowed: Any) -> tuple[Any, Any]:
    """What a call gives without and with enable(): its result, or the error's class and text"""

    def outcome() -> Any:
        try:
            return call()
        except Exception as error:
            return type(error), str(error)

    want = outcome()
    with cutwheel.enabled(ops=ALL, **narrowed):
        return want, outcome()


def test_all_parts_of_a_convolutions_gradient() -> None:
    x, w, grad = torch.randn(2, 4, 6, 6), torch.randn(8, 4, 3, 3), torch.randn(2, 8, 6, 6)
    for mask in itertools.product((False, True), repeat=3):
        want, got = both(
            lambda mask=mask: torch.ops.aten.convolution_backward(
                grad, x, w, [8], [1], [1, 1], [1, 1], False, [0, 0], 1, mask
            )
        )
        # torch's kernels for CPUs return some of them unasked.
        for one, other in zip(want, got, strict=True):
            assert (one is None) is (other is None)
            assert one is None or torch.equal(one, other)


def test_scaled_and_grouped_ops_go_on() -> None:
    a, b = torch.randn(16, 32).to(torch.float8_e4m3fn), torch.randn(48, 32).to(torch.float8_e4m3fn)
    one, bias = torch.ones(()), torch.randn(48).bfloat16()
    for given in ({}, {"bias": bias}, {"out_dtype": torch.float32, "use_fast_accum": True}):
        given = {"out_dtype": torch.bfloat16, **given}
        want, got = both(lambda given=given: torch._scaled_mm(a, b.t(), one, one, **given))
        assert isinstance(want, torch.Tensor), want
        assert torch.equal(got, want)
        out = torch.empty_like(want)
        with cutwheel.enabled():
            torch._scaled_mm(a, b.t(), one, one, **given, out=out)
        assert torch.equal(out, want)
    x, weights = torch.randn(6, 16).bfloat16(), torch.randn(2, 16, 8).bfloat16()
    offs = torch.tensor([2, 6], dtype=torch.int32)
    for left, right in ((x, weights), (x.t(), x)):
        want, got = both(lambda a=left, b=right: torch._grouped_mm(a, b, offs=offs))
        assert isinstance(want, torch.Tensor), want
        assert torch.equal(got, want)
    counts = {entry.op: entry.calls for entry in cutwheel.report().calls}
    assert counts.keys() >= {"_scaled_mm", "_scaled_mm.out", "_grouped_mm"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64, torch.int64])
def test_addmm_hands_its_factors_on(dtype: torch.dtype) -> None:
    a = torch.arange(16).reshape(4, 4).to(dtype)
    factors: list[Any] = [0, 1, 2, True]
    if dtype != torch.int64:
        factors += [0.5, float("inf")]
    if dtype == torch.complex64:
        factors += [1 + 2j]
    for beta, alpha in itertools.product(factors, repeat=2):
        want, got = both(
            lambda beta=beta, alpha=alpha: torch.addmm(a, a, a, beta=beta, alpha=alpha)
        )
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
        out = torch.empty_like(a)
        with cutwheel.enabled(ops=["addmm"]):
            assert torch.addmm(a, a, a, beta=beta, alpha=alpha, out=out) is out
        torch.testing.assert_close(out, want, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    "call",
    [
        lambda a: torch.mm(a, a),
        lambda a: torch.mm(a[0], a),
        lambda a: torch.bmm(a, a),
        lambda a: torch.mm(a, a.t().long()),
        lambda a: torch.mm(a, a.t(), out=torch.empty(4, 4, dtype=torch.int64)),
        lambda a: torch.addmm(a, a, a),
        lambda a: torch.addmm(a, a, a.t().long()),
        lambda a: torch._scaled_mm(a, a, a, a),
        lambda a: torch._scaled_mm(a, a.t(), a, a, out_dtype=torch.bfloat16),
        lambda a: torch._grouped_mm(a, a),
        lambda a: torch._grouped_mm(a, a.t(), offs=a),
        lambda a: F.conv2d(a, a),
        lambda a: F.conv2d(a[None, None], a[None, None], stride=0),
        lambda a: F.conv2d(a[None, None], a[None, None], padding=-1),
        lambda a: F.conv2d(a[None, None], a[None, None], stride=(1, 2, 3)),
        lambda a: F.conv2d(a[None, None], a[None, None].double()),
        lambda a: F.conv2d(a[None, None], a[None, None, :, :], groups=3),
        lambda a: F.conv_transpose2d(a[None, None], a[None, None], output_padding=7),
        lambda a: torch.ops.aten.convolution_backward(
            a, a, a, None, [1], [1], [1], False, [0], 1, [True, True, False]
        ),
    ],
)
def test_errors_are_torchs_own(call: Callable[[torch.Tensor], Any]) -> None:
    a = torch.ones(4, 8)
    want, got = both(lambda: call(a))
    assert isinstance(want[0], type), want
    assert got == want


def test_out_is_written_and_returned() -> None:
    a, b = torch.randn(2, 3, 4), torch.randn(2, 4, 5)
    with cutwheel.enabled():
        out, empty, columns = torch.empty(2, 3, 5), torch.empty(0), torch.empty(5, 3).t()
        assert torch.bmm(a, b, out=out) is out
        assert torch.mm(a[0], b[0], out=empty) is empty
        torch.mm(a[0], b[0], out=columns)
    assert torch.equal(out, torch.bmm(a, b))
    for found in (empty, columns):
        torch.testing.assert_close(found, a[0] @ b[0])
    assert columns.stride() == (1, 3)
    assert {entry.op for entry in cutwheel.report().calls} == {"mm.out", "bmm.out"}


def test_autocast_compile_and_transforms_see_atens_ops() -> None:
    a, b = torch.randn(4, 4), torch.randn(4, 4)
    with cutwheel.enabled():
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.mm(a, b).dtype == torch.bfloat16
        batched = torch.vmap(torch.mm, in_dims=(0, None))(a.expand(3, 4, 4), b)
        compiled = torch.compile(torch.mm, backend="aot_eager", fullgraph=True)(a, b)
    torch.testing.assert_close(batched, (a @ b).expand(3, 4, 4))
    torch.testing.assert_close(compiled, a @ b)


def test_layers_under_autograd_autocast_compile_and_transforms() -> None:
    layers = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.Flatten(), torch.nn.Linear(8 * 16, 4)
    )
    x = torch.randn(2, 3, 4, 4, requires_grad=True)

    def step(function: Callable[[torch.Tensor], torch.Tensor]) -> tuple[torch.Tensor, ...]:
        y = function(x)
        return y, *torch.autograd.grad(y.square().sum(), [x, *layers.parameters()])

    want = step(layers)
    second = torch.autograd.functional.hvp(
        lambda x: layers(x).pow(3).sum(), x.detach(), x.detach()
    )[1]
    with cutwheel.enabled(ops=ALL):
        found = [step(layers), step(torch.compile(layers, backend="aot_eager", fullgraph=True))]
        again = torch.autograd.functional.hvp(
            lambda x: layers(x).pow(3).sum(), x.detach(), x.detach()
        )[1]
        each = torch.vmap(lambda x: layers(x[None])[0])(x)
        with torch.autocast("cpu", torch.bfloat16):
            assert layers(x).dtype == torch.bfloat16
    assert {entry.op for entry in cutwheel.report().calls} >= {
        *("convolution", "convolution_backward", "addmm", "mm")
    }
    for got in found:
        for one, other in zip(got, want, strict=True):
            torch.testing.assert_close(one, other)
    torch.testing.assert_close(again, second)
    torch.testing.assert_close(each, want[0])


def test_modes_see_atens_ops() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    x, w = torch.randn(1, 4, 8, 8), torch.randn(4, 4, 3, 3)
    totals = []
    for ops in ([], ALL):
        with cutwheel.enabled(ops=ops), FlopCounterMode(display=False) as flops:
            F.conv2d(x, w)
            torch.addmm(x[0, 0], x[0, 1], x[0, 2])
        totals.append(flops.get_total_flops())
    assert totals[0] == totals[1] > 0


@pytest.mark.skipif(torch.version.cuda is not None, reason="this torch has kernels for CUDA")
def test_a_torch_without_kernels_keeps_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interception, "_key", "CUDA")
    with cutwheel.enabled(ops=["mm", "addmm"]):
        report = cutwheel.report()
    assert report.enabled == ()
    assert {"mm", "mm.out", "addmm", "addmm.out"} <= {*report.staying}


def test_narrowing_and_nesting() -> None:
    cutwheel.enable(ops=["mm"])
    assert cutwheel.report().enabled == ("mm", "mm.out")
    with cutwheel.enabled(ops=["bmm"]):
        assert cutwheel.report().enabled == ("bmm", "bmm.out")
        with cutwheel.enabled():
            assert cutwheel.report().enabled == TAKEN
        cutwheel.disable()
        assert cutwheel.report().enabled == ("bmm", "bmm.out")
    assert cutwheel.report().enabled == ()


def test_blocks_of_threads_end_in_any_order() -> None:
    first, second = cutwheel.enabled(ops=["mm"]), cutwheel.enabled(ops=["bmm"])
    first.__enter__()
    second.__enter__()
    thread = threading.Thread(target=first.__exit__, args=(None, None, None))
    thread.start()
    thread.join()
    assert cutwheel.report().enabled == ("bmm", "bmm.out")
    second.__exit__(None, None, None)
    assert cutwheel.report().enabled == ()


@pytest.mark.parametrize("function", [cutwheel.enable, cutwheel.enabled])
@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"ops": ["nm"]}, ValueError, 'op "nm" is not known; expected mm, bmm'),
        ({"ops": ["baddbmm"]}, ValueError, 'op "baddbmm" stays with torch: torch hands no Scalar'),
        ({"ops": ["_int_mm"]}, ValueError, 'op "_int_mm" stays with torch: no benchmark'),
        ({"ops": "mm"}, TypeError, r'expected several names, such as \["mm"\]'),
        ({"dtypes": [torch.float64]}, ValueError, "torch.float64 stays with torch; expected"),
        ({"dtypes": torch.bfloat16}, TypeError, r"expected several, such as \[torch.bfloat16\]"),
    ],
)
def test_what_is_refused(function, arguments, error, text) -> None:
    with pytest.raises(error, match=f"{function.__name__}: .*{text}"):
        function(**arguments)
    assert cutwheel.report().enabled == ()


def test_report_counts_problems() -> None:
    a = torch.randn(16, 8)
    with cutwheel.enabled():
        for _ in range(3):
            a @ a.t()
        a.t() @ a
    report = cutwheel.report()
    assert (report.taken, report.passed_on) == (0, 4)
    first, second = report.calls
    assert (first.op, first.calls, first.m, first.n, first.k) == ("mm", 3, 16, 16, 8)
    assert (second.calls, second.m, second.n, second.k) == (1, 8, 8, 16)
    assert (first.dtype, first.taken, first.device) == ("float32", False, -1)
    assert "not on one CUDA device" in str(report)
    assert "addmm: torch hands no Scalar" in str(report)
    assert "if ops= names it" in report.staying["addmm"]
    with cutwheel.enabled(ops=["addmm"]):
        assert "addmm" not in cutwheel.report().staying
    cutwheel.report(clear=True)
    assert cutwheel.report().calls == ()


def test_memory_of_the_report_is_bounded() -> None:
    most, more = 16384, 20
    b = torch.ones(0, 1)
    with cutwheel.enabled(ops=["mm"]):
        for rows in range(most + more):
            torch.mm(torch.empty(rows, 0), b)
    report = cutwheel.report()
    assert report.passed_on == most + more
    assert len(report.calls) == more + 1
    assert (report.calls[0].calls, report.calls[0].dtype) == (most, "")
    assert "earlier problems" in str(report)


def test_report_tells_convolutions_by_their_shapes() -> None:
    x, w = torch.randn(2, 4, 9, 8), torch.randn(6, 4, 3, 1)
    with cutwheel.enabled():
        F.conv2d(x, w, stride=(2, 1), padding=(1, 0))
    (entry,) = cutwheel.report().calls
    assert entry.convolution == (0,) * 14  # a tensor on the CPU is not looked at
    assert (entry.op, entry.dtype, entry.kind) == ("convolution", "float32", "")


def verdict(kind: str, rows: int, *extents: int, major: int = 9) -> str:
    return torch.ops.cutwheel._interception_verdict(kind, rows, list(extents), major)


def test_decisions_are_those_of_the_measurements() -> None:
    import gains

    figures = gains.measured()
    for problem, ratio in figures.items():
        found = verdict(problem.kind, problem.rows, *problem.extents)
        if ratio >= gains.GAIN:
            assert found == "taken", problem
        elif ratio < gains.LOSS:
            assert "as fast, or faster" in found, problem
    for key, ratios in gains.classes_of(figures).items():
        # A problem that nobody measured goes with its class.
        is_convolution = key.kind.startswith("convolution")
        found = verdict(key.kind, 0 if is_convolution else key.rows or 5000, 7, 4097 * 8)
        if len(ratios) < gains.LEAST:
            assert "no measurement" in found
        else:
            assert (found == "taken") is gains.is_faster(ratios), key


def test_every_op_has_something_to_take() -> None:
    import gains

    wins = {kind.split()[0] for kind in gains.kinds_that_win()}
    backward = {"convolution_backward"}  # in the table, directions of a convolution
    assert wins == {*interception.OPS, *interception.BY_NAME} - backward
    assert not wins & set(interception.STAYING)


def test_results_of_ops_that_have_none_will_be_used(monkeypatch, tmp_path) -> None:
    import json

    import gains

    def case(group: str, m: int, **more: Any) -> dict[str, Any]:
        ratios = [{"side": "cutwheel", "baseline": "torch", "median": 1.5}]
        return {"group": group, "status": "ok", "m": m, "n": 64, "k": 64, "ratios": ratios, **more}

    sections = {
        "scaled": {"results": [case("int_mm", m) for m in (32, 48, 64)]},
        "baddbmm": {"results": [case("scores", m, batch=8) for m in (32, 48, 64)]},
    }
    (tmp_path / "new.json").write_text(json.dumps({"sections": sections}))
    monkeypatch.setattr(gains, "RESULTS", tmp_path)
    monkeypatch.setattr(gains, "SOURCES", ("new.json",))
    text = gains.header(gains.measured())
    assert '{"_int_mm tn", 64, true}' in text
    assert '{"baddbmm tn", 64, true}' in text


def test_other_gpus_layouts_and_kinds_stay_with_torch() -> None:
    assert verdict("mm tn", 16, 1, 16, 4096, 4096) == "taken"
    assert "no measurement" in verdict("mm tn", 16, 1, 16, 4096, 4096, major=8)
    assert "no measurement" in verdict("mm nn", 16, 1, 16, 4096, 4096)
    assert "no measurement" in verdict("_scaled_mm rowwise slow", 16, 1, 16, 4096, 4096)


def test_the_table_is_what_results_say() -> None:
    import gains

    assert gains.main(["--check"]) == 0
