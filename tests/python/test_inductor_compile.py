"""torch.compile with cutwheel's kernels, whole: options, backend, Inductor's code and caches."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
import tomllib
import torch
import torch.nn.functional as F

if TYPE_CHECKING:
    from cpu_reference import CpuOps
    from inductor_on_cpu import Compiled

Tensor = torch.Tensor
ROOT = Path(__file__).resolve().parents[2]
PASS = "post_grad_custom_post_pass"


def close(got: Any, wanted: Any) -> None:
    torch.testing.assert_close(got, wanted, rtol=3e-2, atol=3e-2)


class Block(torch.nn.Module):
    """Of which nothing is left to Inductor, which would need a C++ compiler for it."""

    def __init__(self, activation: Callable[[Tensor], Tensor] = F.gelu) -> None:
        super().__init__()
        self.activation = activation
        self.first, self.second = torch.nn.Linear(32, 64), torch.nn.Linear(64, 32)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(self.activation(self.first(x)))


# ---- options
def test_options_are_those_of_a_mode_and_more(cutwheel: ModuleType) -> None:
    plain = cutwheel.inductor_options()
    assert set(plain) == {PASS}
    found = cutwheel.inductor_options("reduce-overhead", options={"epilogue-fusion": False})
    assert found["triton.cudagraphs"] is True
    assert found["epilogue_fusion"] is False
    tuned = cutwheel.inductor_options("max-autotune-no-cudagraphs")
    assert tuned["max_autotune"] is True
    (matmul,) = tuned["external_matmul"]
    from torch._inductor.select_algorithm import extern_kernels

    assert getattr(extern_kernels, matmul.__name__) is matmul
    assert set(cutwheel.inductor_options("default")) == {PASS}


def test_options_that_are_refused(cutwheel: ModuleType) -> None:
    with pytest.raises(ValueError, match='mode is "fast"; expected one of "default"'):
        cutwheel.inductor_options("fast")
    with pytest.raises(TypeError, match="only_faster is of type int; expected a bool"):
        cutwheel.inductor_options(only_faster=1)
    compiled = torch.compile(
        lambda x: x + 1, backend=cutwheel.inductor.backend, options={"no_such": 1}
    )
    with pytest.raises(Exception, match="no_such is no option of Inductor"):
        compiled(torch.ones(2))


def test_equal_options_are_equal(cutwheel: ModuleType) -> None:
    """torch.compile tells by this whether it has to compile again."""
    one, other = cutwheel.inductor_options(), cutwheel.inductor_options()
    assert one == other
    assert one != cutwheel.inductor_options(only_faster=False)
    assert hash(one[PASS]) == hash(other[PASS])


def test_passes_that_were_set_before_run_first(inductor_graphs: Callable[..., Compiled]) -> None:
    from torch._inductor import config
    from torch._inductor.custom_graph_pass import CustomGraphPass

    import cutwheel

    seen: list[str] = []

    class Known(CustomGraphPass):
        def __call__(self, graph: torch.fx.Graph) -> None:
            seen.append("known")

        def uuid(self) -> Any:
            return "known"

    known = Known()
    with config.patch({PASS: known}):
        mine = cutwheel.inductor_options()[PASS]
        # Not within itself, where somebody sets the options for good.
        with config.patch({PASS: mine}):
            assert cutwheel.inductor_options()[PASS].previous == (known,)
    assert mine.previous == (known,)
    assert mine.uuid() != cutwheel.inductor_options()[PASS].uuid()
    mine(torch.fx.Graph())
    assert seen == ["known"]

    def unknown(graph: torch.fx.Graph) -> None:
        seen.append("unknown")

    with config.patch({PASS: unknown}):
        mine = cutwheel.inductor_options()[PASS]
    assert mine.uuid() is None
    assert cutwheel.inductor_options(options={PASS: unknown})[PASS].previous == (unknown,)


def test_the_key_of_caches(cutwheel: ModuleType) -> None:
    key = cutwheel.inductor_options()[PASS].uuid
    assert key() == cutwheel.inductor_options()[PASS].uuid()
    assert key() != cutwheel.inductor_options(only_faster=False)[PASS].uuid()
    before = key()
    with cutwheel.batch_invariant():
        assert key() != before
    assert key() == before
    with torch._inductor.config.patch(freezing=True):
        assert key() is None


# ---- settings
def test_a_gain_does_not_count_in_batch_invariant(
    inductor_graphs: Callable[..., Compiled],
    cutwheel: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from cutwheel.inductor import measured

    monkeypatch.setitem(measured.GEMMS, ("activation", 64), False)
    w = torch.randn(16, 32).bfloat16()
    x = torch.randn(8, 32).bfloat16()

    def function(x: Tensor) -> Tensor:
        return F.gelu(F.linear(x, w))

    with torch.no_grad():
        compiled = inductor_graphs(function, only_faster=True)
        close(compiled(x), function(x))
        assert ("linear_fused", "bias_gelu") not in compiled.ops.calls
        compiled = inductor_graphs(function, only_faster=True)
        with cutwheel.batch_invariant():
            compiled(x)
        assert compiled.ops.calls == [("linear_fused", "bias_gelu")]


def test_the_report_and_the_log(
    inductor_graphs: Callable[..., Compiled],
    cutwheel: ModuleType,
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert str(cutwheel.inductor.report()) == "no graph was compiled"
    model, x = Block().bfloat16(), torch.randn(4, 32).bfloat16()
    compiled = inductor_graphs(lambda x: model(x).float() @ torch.ones(32, 8))
    with caplog.at_level(logging.DEBUG, logger="cutwheel"), torch.no_grad():
        compiled(x)
    found = cutwheel.inductor.report()
    assert (found.replaced, found.left) == (2, 1)
    text = str(found)
    assert "2 of 3 replaced" in text
    assert "addmm        4x64x32 bfloat16 tn" in text
    assert "linear_fused(bias_gelu)" in text
    assert "Inductor: float32 stays with Inductor" in text
    told = [record.getMessage() for record in caplog.records if record.name == "cutwheel"]
    assert len([line for line in told if "2 of 3 replaced" in line]) == 1
    assert len([line for line in told if "linear_fused(bias_gelu)" in line]) == 1
    assert cutwheel.inductor.report(clear=True) == found
    assert not cutwheel.inductor.report().graphs


# ---- Inductor's own code
@pytest.fixture
def on_cpu(traced_on_cpu: CpuOps, monkeypatch: pytest.MonkeyPatch) -> Iterator[CpuOps]:
    """The CPU, as a Hopper GPU with every kernel; nothing comes from caches."""
    from inductor_on_cpu import pretend_gpu

    pretend_gpu(monkeypatch.setattr)
    torch._dynamo.reset()
    with torch._inductor.config.patch(force_disable_caches=True):
        yield traced_on_cpu
    torch._dynamo.reset()


def test_compiled_forward_and_backward(on_cpu: CpuOps, cutwheel: ModuleType) -> None:
    first, second = (torch.randn(n, k).bfloat16() / 6 for n, k in ((64, 32), (32, 64)))
    x = torch.randn(8, 32).bfloat16()

    def function(x: Tensor, first: Tensor, second: Tensor) -> Tensor:
        return x + F.linear(F.linear(x, first), second)

    options = cutwheel.inductor_options(only_faster=False)
    compiled = torch.compile(function, options=options, fullgraph=True)
    results = []
    for call in (compiled, function):
        leaves = [each.clone().requires_grad_() for each in (x, first, second)]
        y = call(*leaves)
        y.backward(torch.ones_like(y))
        results.append([y.detach(), *(each.grad for each in leaves)])
    close(*results)
    names = [call[0] for call in on_cpu.calls]
    assert ("linear_fused", "bias_residual") in on_cpu.calls
    assert names.count("mm") >= 4
    forward, backward = cutwheel.inductor.report().graphs[-2:]
    assert (forward.replaced, backward.replaced) == (2, 4)


def test_compiled_for_any_number_of_rows(on_cpu: CpuOps, cutwheel: ModuleType) -> None:
    model = Block().bfloat16()
    options = cutwheel.inductor_options(only_faster=False)
    compiled = torch.compile(model, options=options, fullgraph=True, dynamic=True)
    with torch.no_grad():
        for rows in (4, 9, 130):
            x = torch.randn(2, rows, 32).bfloat16()
            on_cpu.calls.clear()
            with torch._dynamo.config.patch(error_on_recompile=rows > 4):
                close(compiled(x), model(x))
            assert on_cpu.names("linear_fused") == ["bias_gelu", "bias_residual"]


class Gated(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = (torch.nn.Linear(64, 128, bias=False) for _ in range(2))
        self.down = torch.nn.Linear(128, 64)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


def test_frozen_weights(on_cpu: CpuOps, cutwheel: ModuleType) -> None:
    """Gates are packed, and batch norms are folded, which leaves their activation to the kernel."""
    layer = torch.nn.Sequential(
        torch.nn.Conv2d(16, 32, 3, padding=1), torch.nn.BatchNorm2d(32), torch.nn.ReLU()
    )
    image = torch.randn(2, 16, 8, 8).bfloat16().to(memory_format=torch.channels_last)
    options = cutwheel.inductor_options(only_faster=False)
    for model, x, op, epilogue in (
        (Gated(), torch.randn(16, 64).bfloat16(), "linear_fused", "gated_silu"),
        (layer.to(memory_format=torch.channels_last), image, "conv2d_fused", "bias_relu"),  # type: ignore[call-overload]
    ):
        model.eval().bfloat16()
        torch._dynamo.reset()
        on_cpu.calls.clear()
        with (
            torch.no_grad(),
            torch.backends.mkldnn.flags(enabled=False),  # it would pack the weights
            torch._inductor.config.patch(freezing=True),
        ):
            close(torch.compile(model, options=options)(x), model(x))
        assert (op, epilogue) in on_cpu.calls


class Images(torch.nn.Module):
    """What lies between the convolutions is not channels last, as behind torch's group norm."""

    def __init__(self, layer: type[torch.nn.Module]) -> None:
        super().__init__()
        self.first, self.second = layer(16, 32, 3, padding=1), layer(32, 32, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(F.silu(self.first(x).contiguous()))


@pytest.mark.parametrize("has_own_layers", [False, True])
def test_images_are_computed_in_the_order_of_kernels(
    on_cpu: CpuOps, cutwheel: ModuleType, has_own_layers: bool
) -> None:
    """Else each convolution would copy its input."""
    layer = cutwheel.nn.Conv2d if has_own_layers else torch.nn.Conv2d
    model = Images(layer).bfloat16().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    x = torch.randn(2, 16, 8, 8).bfloat16().to(memory_format=torch.channels_last)
    options = None if has_own_layers else cutwheel.inductor_options(only_faster=False)
    compiled = torch.compile(model, options=options)
    with torch.no_grad():
        close(compiled(x), model(x))
        on_cpu.calls.clear()
        on_cpu.images.clear()
        compiled(x)
    assert on_cpu.calls == [("conv2d", "bias")] * 2
    assert on_cpu.images == [True, True]
    close(compiled(x), model(x))
    on_cpu.images.clear()
    compiled(x).sum().backward()
    assert len(on_cpu.images) >= 4  # those of gradients, too
    assert all(on_cpu.images)


def test_max_autotune_measures(on_cpu: CpuOps, cutwheel: ModuleType) -> None:
    options = cutwheel.inductor_options(
        options={"max_autotune_gemm": True, "autotune_in_subproc": False}, only_faster=False
    )
    assert options["external_matmul"]

    def function(a: Tensor, b: Tensor) -> Tensor:
        return a @ b

    a, b = torch.randn(16, 32).bfloat16(), torch.randn(32, 64).bfloat16()
    cutwheel.inductor.report(clear=True)
    close(torch.compile(function, options=options)(a, b), a @ b)
    assert not on_cpu.calls
    assert "max-autotune measures it" in str(cutwheel.inductor.report())


def test_the_candidate_of_max_autotune(cutwheel: ModuleType) -> None:
    """Where there is no kernel for the operands, torch's is measured in its place."""
    from cutwheel.inductor.external_matmul import cutwheel_mm, matmuls

    a, b = torch.randn(16, 32), torch.randn(32, 8)
    out = torch.empty(16, 8)
    cutwheel_mm(a, b, out=out)
    torch.testing.assert_close(out, a @ b)
    assert matmuls([torch.mm, cutwheel_mm]) == [torch.mm, cutwheel_mm]


@pytest.mark.slow
def test_package_of_aotinductor(on_cpu: CpuOps, cutwheel: ModuleType, tmp_path: Path) -> None:
    model, x = Block().bfloat16().eval(), torch.randn(8, 32).bfloat16()
    rows = torch.export.Dim("rows", min=2, max=4096)
    with torch.no_grad():
        program = torch.export.export(model, (x,), dynamic_shapes=({0: rows},))
        path = torch._inductor.aoti_compile_and_package(
            program,
            package_path=str(tmp_path / "block.pt2"),
            inductor_configs=cutwheel.inductor_options(only_faster=False),
        )
        loaded = torch._inductor.aoti_load_package(path)
        on_cpu.calls.clear()
        for count in (8, 3):
            given = torch.randn(count, 32).bfloat16()
            close(loaded(given), model(given))
    assert on_cpu.names("linear_fused") == ["bias_gelu", "bias_residual"] * 2


# ---- other processes
SETUP = """
import json, sys
sys.path[:0] = json.loads(sys.argv[1])
import torch
import cutwheel
from cpu_reference import CpuOps, install
from cutwheel.ops._common import meta
from inductor_on_cpu import pretend_gpu

meta.check_devices = lambda op, arguments: None
pretend_gpu(setattr)
ops = CpuOps()
library = install(ops)
torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Linear(32, 64), torch.nn.SiLU(), torch.nn.Linear(64, 32)
).bfloat16()
x = torch.randn(8, 32).bfloat16()
only_faster = bool(int(sys.argv[2]))
with torch.no_grad():
    y = torch.compile(model, options=cutwheel.inductor_options(only_faster=only_faster))(x)
    close = torch.allclose(y, model(x), rtol=3e-2, atol=3e-2)
counters = torch._dynamo.utils.counters
print(json.dumps({
    "close": close,
    "calls": [call for call in ops.calls if call[0].startswith("linear")],
    "hits": counters["inductor"]["fxgraph_cache_hit"],
    "misses": counters["inductor"]["fxgraph_cache_miss"],
    "bypass": counters["inductor"]["fxgraph_cache_bypass"],
    "autograd_hits": counters["aot_autograd"]["autograd_cache_hit"],
    "graphs": len(cutwheel.inductor.report().graphs),
}))
"""


def run(code: str, cutwheel: ModuleType, *arguments: str, **variables: str) -> str:
    """What a new process prints."""
    package = Path(str(cutwheel.__file__)).parent.parent
    paths = json.dumps([str(package), str(Path(__file__).parent)])
    done = subprocess.run(
        [sys.executable, "-c", code, paths, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1", **variables},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout.splitlines()[-1]


@pytest.mark.slow
def test_a_second_process_finds_the_graph_in_the_cache(
    cutwheel: ModuleType, tmp_path: Path
) -> None:
    def compiled(only_faster: bool) -> dict[str, Any]:
        cache = str(tmp_path / "cache")
        text = run(SETUP, cutwheel, str(int(only_faster)), TORCHINDUCTOR_CACHE_DIR=cache)
        found: dict[str, Any] = json.loads(text)
        assert found["close"]
        assert found["bypass"] == 0
        return found

    first = compiled(False)
    assert (first["hits"], first["misses"], first["graphs"]) == (0, 1, 1)
    assert first["calls"] == [["linear_fused", "bias_silu"]]
    second = compiled(False)
    assert second["misses"] == 0
    assert second["hits"] + second["autograd_hits"] >= 1
    assert second["graphs"] == 0
    assert second["calls"] == first["calls"]
    other = compiled(True)  # another key
    assert (other["hits"], other["misses"], other["graphs"]) == (0, 1, 1)


@pytest.mark.slow
def test_the_backend_is_found_by_the_entry_point(cutwheel: ModuleType, tmp_path: Path) -> None:
    """Where the package is only on the path, its entry points are written beside it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    folder = tmp_path / "cutwheel-0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: cutwheel\nVersion: 0\n")
    lines = []
    for group, points in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
    (folder / "entry_points.txt").write_text("\n".join(lines))
    code = f"""
import json, sys
sys.path[:0] = [*json.loads(sys.argv[1]), {str(tmp_path)!r}]
import torch
assert "cutwheel" in torch._dynamo.list_backends(), torch._dynamo.list_backends()
assert "cutwheel" not in sys.modules
model = torch.nn.Linear(8, 8)
compiled = torch.compile(model, backend="cutwheel", mode="reduce-overhead")
x = torch.randn(4, 8)
torch.testing.assert_close(compiled(x), model(x))
import cutwheel
(graph, *_) = cutwheel.inductor.report().graphs
print([entry.reason for entry in graph.entries])
"""
    cache = str(tmp_path / "cache")
    assert "not on a CUDA device" in run(code, cutwheel, TORCHINDUCTOR_CACHE_DIR=cache)


def test_the_entry_point_is_there(cutwheel: ModuleType) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    module, _, name = project["entry-points"]["torch_dynamo_backends"]["cutwheel"].partition(":")
    assert getattr(sys.modules[module], name) is cutwheel.inductor.backend
