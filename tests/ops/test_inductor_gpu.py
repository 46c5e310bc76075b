"""torch.compile with cutwheel's kernels on a GPU: Inductor's code around them, beside float32."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F

pytestmark = [pytest.mark.gpu, pytest.mark.no_dispatch_mode]

Tensor = torch.Tensor
BRAIN = torch.bfloat16


@pytest.fixture(autouse=True)
def fresh(cutwheel: ModuleType) -> Iterator[None]:
    torch._dynamo.reset()
    cutwheel.inductor.report(clear=True)
    with torch._inductor.config.patch(force_disable_caches=True):
        yield
    torch._dynamo.reset()


class Block(torch.nn.Module):
    def __init__(self, activation: Any = F.gelu, bias: bool = True) -> None:
        super().__init__()
        self.activation = activation
        self.norm = torch.nn.LayerNorm(256)
        self.first = torch.nn.Linear(256, 512, bias=bias)
        self.second = torch.nn.Linear(512, 256, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(self.activation(self.first(self.norm(x))))


class Images(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(32, 64, 3, padding=1)
        self.second = torch.nn.Conv2d(64, 32, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.second(F.silu(self.first(x))) + x)


def results(model: torch.nn.Module, function: Any, x: Tensor, grad: bool) -> list[Tensor]:
    x = x.detach().clone().requires_grad_(grad)
    with torch.set_grad_enabled(grad):
        y = function(x)
    if not grad:
        return [y]
    model.zero_grad(set_to_none=True)
    y.backward(torch.linspace(-1, 1, y.numel(), device=y.device).view_as(y).to(y.dtype))
    assert x.grad is not None
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return [y.detach(), x.grad, *gradients]


def check(model: torch.nn.Module, compiled: Any, x: Tensor, grad: bool = False) -> None:
    """No further from float32 than twice what torch is in bfloat16."""
    found = results(model, compiled, x, grad)
    floor = results(model, model, x, grad)
    single = type(model)().to(x.device)
    single.load_state_dict({k: v.float() for k, v in model.state_dict().items()})
    if isinstance(model, Block):
        single.activation = model.activation
    if x.dim() == 4:
        single.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    wanted = results(single, single, x.float(), grad)
    for got, torchs, exact in zip(found, floor, wanted, strict=True):
        scale = exact.norm() + 1e-6
        error, allowed = ((each.float() - exact).norm() / scale for each in (got, torchs))
        assert got.shape == exact.shape
        assert float(error) <= 2 * float(allowed) + 1e-3


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("activation", [F.gelu, F.silu, F.relu])
def test_linear_layers(cutwheel: ModuleType, device: str, activation: Any, grad: bool) -> None:
    model = Block(activation).to(device, BRAIN)
    options = cutwheel.inductor_options(only_faster=False)
    compiled = torch.compile(model, options=options, fullgraph=True)
    check(model, compiled, torch.randn(4, 128, 256, device=device, dtype=BRAIN), grad)
    found = cutwheel.inductor.report()
    name = {F.gelu: "gelu", F.silu: "silu", F.relu: "relu"}[activation]
    assert f"bias_{name}" in str(found)
    assert found.left == 0
    assert found.replaced == (6 if grad else 2)


def test_any_number_of_rows(cutwheel: ModuleType, device: str) -> None:
    model = Block().to(device, BRAIN)
    options = cutwheel.inductor_options(only_faster=False)
    compiled = torch.compile(model, options=options, fullgraph=True, dynamic=True)
    for rows in (16, 24, 7, 300):
        with torch._dynamo.config.patch(error_on_recompile=rows != 16):
            check(model, compiled, torch.randn(2, rows, 256, device=device, dtype=BRAIN))
    (graph,) = cutwheel.inductor.report().graphs
    assert graph.replaced == 2


@pytest.mark.parametrize("grad", [False, True])
def test_convolutions(cutwheel: ModuleType, device: str, grad: bool) -> None:
    model = Images().to(device, BRAIN, memory_format=torch.channels_last)  # type: ignore[call-overload]
    options = cutwheel.inductor_options(only_faster=False)
    compiled = torch.compile(model, options=options, fullgraph=True)
    x = torch.randn(4, 32, 24, 24, device=device, dtype=BRAIN)
    check(model, compiled, x.to(memory_format=torch.channels_last), grad)
    text = str(cutwheel.inductor.report())
    assert ("conv2d_input_grad" if grad else "conv2d_fused(bias_silu)") in text
    assert "conv2d" in text


class Volumes(torch.nn.Module):
    """A residual block of a decoder of videos; what is between the convolutions is not channels
    last."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv3d(32, 64, 3, padding=(0, 1, 1))
        self.second = torch.nn.Conv3d(64, 64, 3, padding=(0, 1, 1))
        self.shortcut = torch.nn.Conv3d(32, 64, 1)

    def forward(self, x: Tensor) -> Tensor:
        causal = (0, 0, 0, 0, 2, 0)
        h = F.silu(self.first(F.pad(x, causal)).contiguous())
        return self.second(F.pad(h, causal)) + self.shortcut(x)


@pytest.mark.parametrize("grad", [False, True])
def test_volumes(cutwheel: ModuleType, device: str, grad: bool) -> None:
    order = torch.channels_last_3d
    model = Volumes().to(device, BRAIN, memory_format=order)  # type: ignore[call-overload]
    options = cutwheel.inductor_options(only_faster=False)
    compiled = torch.compile(model, options=options, fullgraph=True)
    x = torch.randn(1, 32, 5, 12, 20, device=device, dtype=BRAIN)
    check(model, compiled, x.to(memory_format=order), grad)
    text = str(cutwheel.inductor.report())
    assert ("conv3d_input_grad" if grad else "conv3d_fused(bias_residual)") in text


def test_cuda_graphs(cutwheel: ModuleType, device: str) -> None:
    model = Block().to(device, BRAIN)
    options = cutwheel.inductor_options("reduce-overhead", only_faster=False)
    compiled = torch.compile(model, options=options)
    x = torch.randn(64, 256, device=device, dtype=BRAIN)
    with torch.no_grad():
        for _ in range(4):
            found = compiled(x).clone()
    check(model, lambda x: found, x)


def test_max_autotune(cutwheel: ModuleType, device: str) -> None:
    options = cutwheel.inductor_options("max-autotune-no-cudagraphs")
    a = torch.randn(512, 1024, device=device, dtype=BRAIN)
    b = torch.randn(1024, 768, device=device, dtype=BRAIN)
    found = torch.compile(lambda a, b: a @ b, options=options)(a, b)
    torch.testing.assert_close(found, a @ b, rtol=2e-2, atol=2e-1)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("freezing", [False, True])
def test_gates_of_two_layers(cutwheel: ModuleType, device: str, freezing: bool, bias: bool) -> None:
    """Whether Inductor joins the weights, as freezing does, or has parameters."""

    class Mlp(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate = torch.nn.Linear(256, 512, bias)
            self.up = torch.nn.Linear(256, 512, bias)

        def forward(self, x: Tensor) -> Tensor:
            return F.silu(self.gate(x)) * self.up(x)

    model = Mlp().to(device, BRAIN).eval()
    options = cutwheel.inductor_options(only_faster=False)
    x = torch.randn(64, 256, device=device, dtype=BRAIN)
    with torch.no_grad(), torch._inductor.config.patch(freezing=freezing):
        found = torch.compile(model, options=options)(x)
        torch.testing.assert_close(found, model(x), rtol=2e-2, atol=2e-2)
    name = "gated_bias_silu" if bias else "gated_silu"
    assert name in str(cutwheel.inductor.report(clear=True))


def test_gates_behind_a_bias(cutwheel: ModuleType, device: str) -> None:
    """Which Inductor adds by itself, where operations on elements follow."""
    layer = torch.nn.Linear(256, 1024).to(device, BRAIN).requires_grad_(False)

    def unit(x: Tensor) -> Tensor:
        z = layer(x)
        return F.gelu(z[..., ::2]) * z[..., 1::2]

    x = torch.randn(2, 32, 256, device=device, dtype=BRAIN)
    with torch.no_grad():
        found = torch.compile(unit, options=cutwheel.inductor_options(only_faster=False))(x)
        torch.testing.assert_close(found, unit(x), rtol=2e-2, atol=2e-2)
    assert "gated_bias_gelu" in str(cutwheel.inductor.report(clear=True))


TORCHS_OWN = """
import sys, torch
from torch import _inductor
device, path = sys.argv[1:]
x = torch.ones(8, 8, device=device)
program = torch.export.export(torch.nn.Linear(8, 8, device=device), (x,))
_inductor.aoti_load_package(_inductor.aoti_compile_and_package(program, package_path=path))
"""


def test_package_of_aotinductor(cutwheel: ModuleType, device: str, tmp_path: Path) -> None:
    # The code that torch generates may end the process, in std::regex: where the host compiler's
    # C++ library is not the one that the process has.
    path = str(tmp_path / "own.pt2")
    own = subprocess.run([sys.executable, "-c", TORCHS_OWN, device, path], capture_output=True)
    if own.returncode < 0:
        pytest.skip(f"torch's own packages end the process here, by signal {-own.returncode}")
    model = Block().to(device, BRAIN).eval()
    x = torch.randn(64, 256, device=device, dtype=BRAIN)
    with torch.no_grad():
        program = torch.export.export(model, (x,))
        path = torch._inductor.aoti_compile_and_package(
            program,
            package_path=str(tmp_path / "block.pt2"),
            inductor_configs=cutwheel.inductor_options(only_faster=False),
        )
        loaded = torch._inductor.aoti_load_package(path)
    check(model, loaded, x)
    assert cutwheel.inductor.report().replaced == 2


def test_batch_invariant(cutwheel: ModuleType, device: str) -> None:
    """Rows of what is replaced are the same bits in every batch."""
    # Extents of parameters are fixed, those of tensors of a closure are not.
    linear = {"bias": False, "device": device, "dtype": BRAIN}
    model = torch.nn.Sequential(
        torch.nn.Linear(256, 256, **linear), torch.nn.GELU(), torch.nn.Linear(256, 256, **linear)
    )
    options = cutwheel.inductor_options()
    x = torch.randn(300, 256, device=device, dtype=BRAIN)
    with cutwheel.batch_invariant(), torch.no_grad():
        compiled = torch.compile(model, options=options, dynamic=True)
        whole = compiled(x)
        for rows in (2, 17, 129):
            assert torch.equal(compiled(x[:rows]), whole[:rows])
    assert cutwheel.inductor.report().left == 0
