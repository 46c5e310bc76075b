"""The gpu marker, seeds, and the package under test, for all tests.

CUTWHEEL_TEST_DEVICE names the device of the gpu tests (default: cuda).
CUTWHEEL_PACKAGE_DIR names a folder that holds a built `cutwheel` package, to test that one.
"""

from __future__ import annotations

import importlib.util
import os
import random
import re
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from cpu_reference import CpuOps

SEED = int(os.environ.get("CUTWHEEL_TEST_SEED", "20"))
DEVICE = os.environ.get("CUTWHEEL_TEST_DEVICE", "cuda")

if os.environ.get("CUTWHEEL_PACKAGE_DIR"):
    sys.path.insert(0, os.environ["CUTWHEEL_PACKAGE_DIR"])

_package: ModuleType | None = None
_reason: str | None = None


def _import_package() -> str | None:
    """Why the package cannot be tested, or None. In CI that is an error, not a reason to skip."""
    global _package
    if importlib.util.find_spec("cutwheel") is None:
        return (
            "cutwheel is not installed (`make test` builds it; CUTWHEEL_PACKAGE_DIR names a build)"
        )
    try:
        import cutwheel
    except ImportError as error:
        return f"cutwheel does not import: {error}"
    _package = cutwheel
    return None


def _has_device() -> bool:
    import torch

    return torch.device(DEVICE).type != "cuda" or torch.cuda.is_available()


def pytest_report_header() -> str:
    return f"seed {SEED} (CUTWHEEL_TEST_SEED), device {DEVICE} (CUTWHEEL_TEST_DEVICE)"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests first: of several processes, one would be left with them at the end."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") is None:
        return
    try:
        present = _has_device()
    except ImportError:
        pytest.skip("torch is not installed")
    if not present:
        pytest.skip("no CUDA device: torch.cuda.is_available() is False")
    _require_package()


def _require_package() -> ModuleType:
    global _reason
    if _package is None and _reason is None:
        _reason = _import_package()
    if _reason is not None:
        if os.environ.get("CI", "").lower() in ("1", "true"):
            pytest.fail(_reason, pytrace=False)
        pytest.skip(_reason)
    assert _package is not None
    return _package


@pytest.fixture
def cutwheel() -> ModuleType:
    """The package under test."""
    return _require_package()


@pytest.fixture
def device() -> str:
    return DEVICE


@pytest.fixture(autouse=True)
def seed() -> int:
    random.seed(SEED)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(SEED)
    return SEED


@pytest.fixture
def torchs_samples() -> Callable[[str], Any]:
    """From the name of an op to the samples of torch's own tests, an OpInfo."""
    pytest.importorskip("expecttest", reason="torch's samples need it")
    import torch
    from torch.testing._internal.common_methods_invocations import op_db

    # That import freezes torch's settings, for all tests that come later.
    torch.backends.flags_frozen.__globals__["__allow_nonbracketed_mutation_flag"] = True
    return lambda op: next(info for info in op_db if info.name == op)


@pytest.fixture(autouse=True)
def fresh_compiler() -> Generator[None, None, None]:
    """torch.compile takes nothing over from the tests before."""
    yield
    if "torch._dynamo" in sys.modules:
        sys.modules["torch._dynamo"].reset()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        report.sections.append(("seed", f"CUTWHEEL_TEST_SEED={SEED}"))
    return report


# Errors that torch's functions, too, raise as TypeError and nothing else.
_WRONG_TYPE = re.compile(
    r"expected a (Tensor|number|value of type|recipe)|is missing|is no operand"
)


@pytest.fixture
def check_class() -> Callable[[BaseException, Any], None]:
    """That an error is of a class, and of the one that torch's own functions raise."""

    def check(error: BaseException, classes: type[BaseException] | tuple[Any, ...]) -> None:
        assert isinstance(error, classes)
        if classes in (RuntimeError, NotImplementedError):
            assert type(error) is classes, "not a class of an argument that does not fit"
        if type(error) is TypeError:
            assert _WRONG_TYPE.search(str(error)), "torch raises RuntimeError"
        else:
            assert isinstance(error, RuntimeError)

    return check


@pytest.fixture
def poison() -> Callable[..., object]:
    """Fills a tensor with NaN and returns it: what a kernel does not write stands out."""
    return lambda tensor: tensor.fill_(float("nan"))


@pytest.fixture
def environment(
    monkeypatch: pytest.MonkeyPatch, cutwheel: ModuleType
) -> Generator[Callable[..., None], None, None]:
    """Sets variables that the op library reads, and undoes that."""
    import torch

    def set_variables(**variables: str) -> None:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        torch.ops.cutwheel._reload_env()

    yield set_variables
    monkeypatch.undo()
    torch.ops.cutwheel._reload_env()


@pytest.fixture
def cpu_ops(cutwheel: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Generator[CpuOps, None, None]:
    """Runs the ops on CPU tensors of any dtype, in place of the kernels that only refuse them."""
    import torch

    monkeypatch.syspath_prepend(Path(__file__).with_name("python"))
    from cpu_reference import CpuOps, install

    ops = CpuOps()
    library = install(ops)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    yield ops
    torch.set_float32_matmul_precision(before)
    library._destroy()


@pytest.fixture
def traced_on_cpu(cpu_ops: CpuOps, monkeypatch: pytest.MonkeyPatch) -> CpuOps:
    """cpu_ops whose meta functions take CPU tensors, too: for torch.compile and opcheck."""
    from cutwheel.ops._common import meta

    monkeypatch.setattr(meta, "check_devices", lambda op, arguments: None)
    return cpu_ops
