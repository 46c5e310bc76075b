"""Convolutions with taps along the depth, and transposed ones, on a GPU."""

from __future__ import annotations

import warnings
from types import ModuleType
from typing import Any

import pytest
import torch
from fused_cases import assert_near, values
from gemm_cases import BRAIN, HALF, TORCH_DTYPE, dtype_id, manifest_kernels
from runtime import capture
from torch.nn import functional
from volume_cases import EPILOGUES, PROBLEMS, SEED, TRANSPOSED, Volume, drawn

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        torch.cuda.is_available() and torch.cuda.get_device_capability() != (9, 0),
        reason="kernels for volumes are those of compute capability 9.0",
    ),
]
HALVES = (HALF, BRAIN)
DIRECTIONS = ("fprop", "dgrad", "wgrad")
SHARING = [
    row
    for row in manifest_kernels("conv2d")
    if row["cluster"][2] > 1 and row["epilogue"] == "plain"
]
SHARING_PIXELS = [
    row
    for row in manifest_kernels("conv2d")
    if row["family"] == "sm90_row_conv" and row["epilogue"] == "plain"
]
GATHERING = [
    row
    for row in manifest_kernels("conv2d")
    if row["family"] == "sm90_gather_conv"
    and (row["direction"], row["epilogue"]) == ("fprop", "plain")
]


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("dtype", HALVES, ids=dtype_id)
def test_problems(
    cutwheel: ModuleType, device: str, dtype: torch.dtype, direction: str, name: str
) -> None:
    for number in range(6):
        Volume.random(direction, *PROBLEMS[name], dtype, device).laid_out(number).check()


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_drawn_problems(cutwheel: ModuleType, device: str, direction: str) -> None:
    for number, each in enumerate(drawn(40)):
        dtype = HALVES[number % 2]
        Volume.random(direction, *each, dtype, device).laid_out(number).check()


@pytest.mark.parametrize("kernel", SHARING, ids=lambda kernel: kernel["name"])
def test_clusters_share_k(
    cutwheel: ModuleType, device: str, environment: Any, kernel: dict[str, Any]
) -> None:
    """Threadblocks begin at any tap: of any row, slice and column. Of dgrad they take stride 1."""
    environment(CUTWHEEL_KERNEL=kernel["name"])
    direction = kernel["direction"]
    for name in ("same", "causal", "strided")[: 3 if direction == "fprop" else 2]:
        given = Volume.random(direction, *PROBLEMS[name], TORCH_DTYPE[kernel["a"]], device)
        assert given.row() == kernel["name"], name
        given.check()


@pytest.mark.parametrize("kernel", SHARING_PIXELS, ids=lambda kernel: kernel["name"])
@pytest.mark.parametrize("name", ["same", "lines", "causal"])
def test_taps_share_pixels(
    cutwheel: ModuleType, device: str, environment: Any, kernel: dict[str, Any], name: str
) -> None:
    environment(CUTWHEEL_KERNEL=kernel["name"])
    dtype = TORCH_DTYPE[kernel["a"]]
    for number in range(3):
        given = Volume.random(kernel["direction"], *PROBLEMS[name], dtype, device)
        given = given.laid_out(number)
        assert given.row() == kernel["name"]
        given.check()


@pytest.mark.parametrize("kernel", GATHERING, ids=lambda kernel: kernel["name"])
@pytest.mark.parametrize("name", [*PROBLEMS])
def test_gathered_volumes(
    cutwheel: ModuleType, device: str, environment: Any, kernel: dict[str, Any], name: str
) -> None:
    environment(CUTWHEEL_KERNEL=kernel["name"])
    for number in range(3):
        given = Volume.random("fprop", *PROBLEMS[name], TORCH_DTYPE[kernel["a"]], device)
        given = given.laid_out(number)
        assert given.row() == kernel["name"]
        given.check()


@pytest.mark.parametrize("epilogue", ["bias", "bias_relu", "bias_residual", "bias_residual_relu"])
def test_epilogues(cutwheel: ModuleType, device: str, epilogue: str) -> None:
    for name in PROBLEMS:
        Volume.random("fprop", *PROBLEMS[name], BRAIN, device, epilogue).check()


@pytest.mark.parametrize("name", TRANSPOSED)
@pytest.mark.parametrize("epilogue", EPILOGUES)
@pytest.mark.parametrize("dtype", HALVES, ids=dtype_id)
def test_transposed(
    cutwheel: ModuleType, device: str, dtype: torch.dtype, epilogue: str, name: str
) -> None:
    given = ("dgrad", *TRANSPOSED[name], dtype, device, epilogue, True)
    for number in range(2):
        Volume.random(*given).laid_out(number).check()  # type: ignore[arg-type]


def test_empty_batches(cutwheel: ModuleType, device: str) -> None:
    x, weight = values((0, 8, 3, 4, 5), BRAIN, device), values((6, 8, 3, 3, 3), BRAIN, device)
    leaves = [x.requires_grad_(), weight.requires_grad_()]
    y = cutwheel.conv3d(*leaves, padding=1)
    assert y.shape == (0, 6, 3, 4, 5)
    assert not torch.autograd.grad(y.sum(), leaves)[1].any()
    z = cutwheel.conv_transpose2d(x[:, :, 0], values((8, 4, 2, 2), BRAIN, device), stride=2)
    assert z.shape == (0, 4, 8, 10)


def test_gradients_of_gradients(cutwheel: ModuleType, device: str) -> None:
    torch.manual_seed(SEED)
    sizes = (1, 16, 3, 6, 5), (24, 16, 3, 3, 3)

    def double(dtype: torch.dtype, run: Any) -> tuple[torch.Tensor, ...]:
        x, weight = (tensor.detach().to(dtype).requires_grad_() for tensor in given)
        first = torch.autograd.grad(run(x, weight).square().mean(), (x, weight), create_graph=True)
        return torch.autograd.grad(sum(g.square().mean() for g in first), (x, weight))

    given = [values(size, BRAIN, device) for size in sizes]
    where = {"stride": (2, 1, 2), "padding": 1}
    ours = double(BRAIN, lambda x, weight: cutwheel.conv3d(x, weight, **where))
    exact = double(torch.float64, lambda x, weight: functional.conv3d(x, weight, **where))
    for one, other in zip(ours, exact, strict=True):
        assert (one.double() - other).norm() <= 3e-2 * other.norm()


@pytest.mark.no_dispatch_mode
def test_compile_and_graphs(cutwheel: ModuleType, device: str) -> None:
    def model(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        y = cutwheel.conv3d(x, a, None, 1, ((2, 0), 1, 1), activation="relu")
        return cutwheel.conv_transpose3d(y, b, None, 2)

    def exact(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        y = functional.conv3d(functional.pad(x, (1, 1, 1, 1, 2, 0)), a).relu()
        return functional.conv_transpose3d(y, b, None, 2)

    sizes = (1, 16, 3, 6, 5), (24, 16, 3, 3, 3), (24, 8, 2, 2, 2)
    given = [(values(s, BRAIN, device) / 8).requires_grad_() for s in sizes]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = torch.compile(model, fullgraph=True, backend="aot_eager")(*given)
        grads = torch.autograd.grad(result.square().mean(), given)
    doubles = [x.detach().double().requires_grad_() for x in given]
    expected = exact(*doubles)
    assert_near(result, expected, BRAIN)
    for got, want in zip(
        grads, torch.autograd.grad(expected.square().mean(), doubles), strict=True
    ):
        assert_near(got, want, BRAIN)
    with torch.no_grad():
        graph, outputs = capture(lambda: model(*given))
        graph.replay()
        assert_near(outputs, expected, BRAIN)


def test_more_elements_than_int32_counts(cutwheel: ModuleType, device: str) -> None:
    """Of the activation and the result: what a tile near the end computes is compared."""
    if torch.cuda.mem_get_info()[0] < 24 << 30:
        pytest.skip("needs 24 GiB of free memory")
    x = torch.randn(1, 96, 57, 480, 832, dtype=BRAIN, device=device)
    x = x.contiguous(memory_format=torch.channels_last_3d)
    weight = values((96, 96, 3, 3, 3), BRAIN, device) / 32
    assert x.numel() > 2**31
    y = cutwheel.conv3d(x, weight, padding=((2, 0), 1, 1))
    end = functional.conv3d(x[:, :, -3:, -17:, -19:].double(), weight.double())
    assert_near(y[:, :, -1:, -16:-1, -18:-1], end, BRAIN)
