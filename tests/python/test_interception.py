"""enable(), disable(), enabled() and report(), where no GPU is needed: at the CPU's dispatch key,
where every call goes on to torch's kernel, and the decision as a function of a problem."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
import torch

import cutwheel
from cutwheel import interception

BF16, FP32 = interception.DTYPES[torch.bfloat16], 6


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


def test_ops_go_to_torch_again_as_they_were() -> None:
    before = [torch._C._dispatch_dump(f"aten::{op}") for op in ("mm", "mm.out", "bmm", "bmm.out")]
    cutwheel.enable()
    assert "intercept.cpp" in registered("mm")
    assert cutwheel.report().enabled == ("mm", "mm.out", "bmm", "bmm.out")
    cutwheel.disable()
    assert cutwheel.report().enabled == ()
    assert before == [
        torch._C._dispatch_dump(f"aten::{op}") for op in ("mm", "mm.out", "bmm", "bmm.out")
    ]


def test_nothing_is_patched_at_import() -> None:
    code = "import torch, cutwheel; print('intercept' in torch._C._dispatch_dump('aten::mm'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_enabling_is_silent() -> None:
    code = (
        "import cutwheel; from cutwheel import interception; interception._key = 'CPU'\n"
        "cutwheel.enable(); print(cutwheel.report().enabled)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "mm.out" in done.stdout
    assert "Overriding" not in done.stderr


@pytest.mark.parametrize("op", interception.OPS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.complex64])
def test_samples_of_torch_have_the_same_results(op: str, dtype: torch.dtype) -> None:
    pytest.importorskip("expecttest", reason="torch's samples need it")
    from torch.testing._internal.common_methods_invocations import op_db

    info = next(info for info in op_db if info.name == op)
    if dtype not in info.supported_dtypes("cpu"):
        pytest.skip("torch has no such kernel")
    needs_grad = dtype.is_floating_point or dtype.is_complex
    for sample in info.sample_inputs("cpu", dtype, requires_grad=needs_grad):
        want = info(sample.input, *sample.args, **sample.kwargs)
        with cutwheel.enabled():
            got = info(sample.input, *sample.args, **sample.kwargs)
        assert torch.equal(got, want)
        assert got.stride() == want.stride()
        if needs_grad and want.numel() and want.requires_grad:
            inputs = [x for x in (sample.input, *sample.args) if x.requires_grad]
            wanted = torch.autograd.grad(want.abs().sum(), inputs)
            with cutwheel.enabled():
                found = torch.autograd.grad(got.abs().sum(), inputs)
            assert all(map(torch.equal, found, wanted))
    assert cutwheel.report().passed_on > 0


@pytest.mark.parametrize(
    "call",
    [
        lambda a: torch.mm(a, a),
        lambda a: torch.mm(a[0], a),
        lambda a: torch.bmm(a, a),
        lambda a: torch.mm(a, a.t().long()),
        lambda a: torch.mm(a, a.t(), out=torch.empty(4, 4, dtype=torch.int64)),
    ],
)
def test_errors_are_torchs_own(call) -> None:
    a = torch.ones(4, 8)
    with pytest.raises(RuntimeError) as want:
        call(a)
    with cutwheel.enabled(), pytest.raises(RuntimeError) as got:
        call(a)
    assert type(got.value) is type(want.value)
    assert str(got.value) == str(want.value)


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


def test_narrowing_and_nesting() -> None:
    cutwheel.enable(ops=["mm"])
    assert cutwheel.report().enabled == ("mm", "mm.out")
    with cutwheel.enabled(ops=["bmm"]):
        assert cutwheel.report().enabled == ("bmm", "bmm.out")
        with cutwheel.enabled():
            assert len(cutwheel.report().enabled) == 4
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
        ({"ops": ["addmm"]}, ValueError, 'op "addmm" stays with torch: torch hands no Scalar'),
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


def verdict(
    layout: str, m: int, n: int, k: int, *, batch: int = 1, major: int = 9, dtype: int = BF16
) -> str:
    return torch.ops.cutwheel._interception_verdict(dtype, batch, m, n, k, layout, major)


def test_decisions_are_those_of_the_measurements() -> None:
    import gains

    figures = gains.measured()
    classes: dict[object, list[float]] = {}
    for problem, ratio in figures.items():
        classes.setdefault(gains.class_of(problem), []).append(ratio)
    for problem, ratio in figures.items():
        found = verdict(problem.layout, problem.m, problem.n, problem.k, batch=problem.batch)
        if ratio >= gains.GAIN:
            assert found == "taken", problem
        elif ratio < gains.LOSS:
            assert "as fast, or faster" in found, problem
    for key, ratios in classes.items():
        # A problem that nobody measured goes with its class.
        found = verdict(
            key.layout, key.rows or 5000, 4097 * 8, 4099 * 8, batch=1 + 6 * key.is_batched
        )
        if len(ratios) < gains.LEAST:
            assert "no measurement" in found
        else:
            assert (found == "taken") is gains.is_faster(ratios), key


def test_other_gpus_layouts_and_dtypes_stay_with_torch() -> None:
    assert verdict("tn", 16, 4096, 4096) == "taken"
    assert "no measurement" in verdict("tn", 16, 4096, 4096, major=8)
    assert "no measurement" in verdict("nn", 16, 4096, 4096)
    assert "float16 and bfloat16" in verdict("tn", 16, 4096, 4096, dtype=FP32)


def test_the_table_is_what_results_say() -> None:
    import gains

    assert gains.main(["--check"]) == 0
