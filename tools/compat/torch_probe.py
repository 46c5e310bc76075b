#!/usr/bin/env python3
"""Probes the installed wheel with the installed torch, as text: `... torch_probe.py FILE`.

torch_matrix.py runs this in the environment of each torch and compares the texts. No GPU is
needed: fake tensors, tensors on the CPU, which the ops refuse, and questions about other GPUs.
"""

from __future__ import annotations

import functools
import importlib
import json
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Notes:
    """Observations of the probe by name, and those that it should not have made."""

    seen: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def add(
        self, name: str, call: Callable[[], object], error: type[Exception] | None = None
    ) -> None:
        """Notes the result of `call` as text, or what it raises: `error`, if that is given."""
        raised: type[Exception] | None = None
        try:
            text = text_of(call())
        except Exception as caught:
            raised = type(caught)
            text = f"{raised.__name__}: {caught}"
        if raised is not error:
            wanted = error.__name__ if error else "a result"
            self.problems.append(f"{name}: expected {wanted}, got {text.splitlines()[0]}")
        self.seen[name] = text


def text_of(value: object) -> str:
    """Tensors by what a meta function decides: shape, dtype, strides and device."""
    if isinstance(value, (tuple, list)):
        return f"({', '.join(text_of(item) for item in value)})"
    if hasattr(value, "stride"):
        tensor: Any = value
        return f"{list(tensor.shape)} {tensor.dtype} {tuple(tensor.stride())} {tensor.device}"
    return str(value)


def probe() -> dict[str, Any]:
    torch: Any = importlib.import_module("torch")
    start = time.perf_counter()
    cutwheel: Any = importlib.import_module("cutwheel")
    seconds = time.perf_counter() - start
    notes = Notes()
    torch.set_float32_matmul_precision("highest")
    note_tables(notes, torch, cutwheel)
    note_selection(notes, torch)
    note_refusals(notes, torch, cutwheel)
    note_fake_results(notes, torch, cutwheel)
    note_fake_errors(notes, torch, cutwheel)
    note_gradients(notes, torch, cutwheel)
    return {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "package": cutwheel.__file__,
        "import_ms": round(1000 * seconds, 1),
        "seen": notes.seen,
        "problems": notes.problems,
    }


def note_tables(notes: Notes, torch: Any, cutwheel: Any) -> None:
    schemas = [s for s in torch._C._jit_get_all_schemas() if s.name.startswith("cutwheel::")]
    for schema in schemas:
        notes.seen[f"schema {schema.name}.{schema.overload_name}"] = str(schema)
    # The dispatcher's own list: what is registered, whether or not anything was called.
    names = torch._C._dispatch_get_all_op_names()
    notes.seen["ops"] = ", ".join(sorted(n for n in names if n.startswith("cutwheel::")))
    for key in ("CUDA", "CPU", "Meta", "CompositeExplicitAutograd"):
        has = torch._C._dispatch_has_kernel_for_dispatch_key
        found = [n for n in names if n.startswith("cutwheel::") and has(n, key)]
        notes.seen[f"kernels of {key}"] = ", ".join(sorted(found))
    notes.add("public names", lambda: sorted(cutwheel.__all__))
    notes.add("build_info", lambda: json.dumps(cutwheel.build_info(), sort_keys=True))
    notes.add("epilogues", lambda: "\n".join(str(e) for e in cutwheel.epilogues()))
    notes.add("kernels", lambda: "\n".join(str(kernel) for kernel in cutwheel.kernels()))


def note_selection(notes: Notes, torch: Any) -> None:
    """GPUs by data-sheet figures, as in tests/python/test_selection.py."""
    gpus = {
        "A100": (8, 0, 108, 163 * 1024, 2039.0, 1.41),
        "L40S": (8, 9, 142, 99 * 1024, 864.0, 2.52),
        "H200": (9, 0, 132, 227 * 1024, 4917.0, 1.98),
        "B200": (10, 0, 148, 227 * 1024, 8000.0, 1.85),
        "V100": (7, 0, 80, 96 * 1024, 900.0, 1.53),
    }
    # As in a table of measurements: op, dtypes of A, B and D, layouts, C, epilogue, and the rest.
    line = "gemm bf16 bf16 bf16 tn {} 0 none 1 {} 4096 4096 1 none 0 none 1 1 1 none -"
    epilogues = {"": "none -", " gelu": "other bias_gelu"}
    ask = torch.ops.cutwheel._explain_for_gpu
    for name, gpu in gpus.items():
        for m in (1, 64, 4096):
            for label, epilogue in epilogues.items():
                request = line.format(epilogue, m)
                notes.add(f"{name} m={m}{label}", functools.partial(ask, *gpu, request))


def calls(w: Any, make: Callable[..., Any]) -> dict[str, Callable[[], object]]:
    """A good call of every op, on the tensors that `make` makes."""
    a, b, row, c = make(4, 16), make(16, 8), make(8), make(4, 8)
    a3, b3, weight = make(2, 4, 16), make(2, 16, 8), make(8, 16)
    return {
        "mm": lambda: w.mm(a, b),
        "mm transposed": lambda: w.mm(b.t(), a.t()),
        "mm out=": lambda: w.mm(a, b, out=make(4, 8)),
        "bmm": lambda: w.bmm(a3, b3),
        "bmm out=": lambda: w.bmm(a3, b3, out=make(2, 4, 8)),
        "addmm": lambda: w.addmm(row, a, b, beta=0.5, alpha=2),
        "addmm out=": lambda: w.addmm(c, a, b, out=make(4, 8)),
        "baddbmm": lambda: w.baddbmm(row, a3, b3, beta=2),
        "baddbmm out=": lambda: w.baddbmm(c, a3, b3, out=make(2, 4, 8)),
        "linear": lambda: w.linear(a3, weight),
        "linear bias": lambda: w.linear(a3, weight, row),
        "linear gelu": lambda: w.linear(a3, weight, row, activation="gelu"),
        "linear gelu residual": lambda: w.linear(
            a, weight, row, activation="gelu", residual=c, residual_after_activation=True
        ),
        "linear leaky_relu": lambda: w.linear(a, weight, row, activation="leaky_relu"),
        "gated_linear": lambda: w.gated_linear(a3, weight),
        "gemm": lambda: w.gemm(a, b, "bias_gelu", bias=row),
        "gemm without operands": lambda: w.gemm(a, b, "bias_gelu"),
        "gemm aux": lambda: w.gemm(a, b, "bias_gelu_aux", bias=row),
        "gemm out=": lambda: w.gemm(a, b, "bias_gelu", bias=row, out=make(4, 8)),
        "gemm aux out=": lambda: w.gemm(a, b, "bias_gelu_aux", out=(make(4, 8), make(4, 8))),
        "gemm batch": lambda: w.gemm(a3, b3, "linear_combination", alpha=2, beta=0, c=c),
        "matmul": lambda: w.matmul(a3, b),
    }


def scaled_calls(w: Any, torch: Any, make: Callable[..., Any]) -> dict[str, Callable[[], object]]:
    """Calls of scaled_mm and quantize, for tensors that hold no values."""
    x, fp8 = make(4, 16), torch.float8_e4m3fn
    a, b = make(4, 16, dtype=fp8), make(8, 16, dtype=fp8).t()
    i, j = make(4, 16, dtype=torch.int8), make(8, 16, dtype=torch.int8).t()
    rows, columns = make(4, 1, dtype=torch.float32), make(1, 8, dtype=torch.float32)
    return {
        "quantize": lambda: w.quantize(x, "blockwise_1x128"),
        "quantize azp": lambda: w.quantize(x, "rowwise", torch.int8, symmetric=False),
        "scaled_mm": lambda: w.scaled_mm(a, b, rows, scale_b=columns),
        "scaled_mm int8": lambda: w.scaled_mm(
            i, j, rows, scale_b=columns, output_dtype=torch.float16
        ),
        "scaled_mm int32": lambda: w.scaled_mm(i, j, output_dtype=torch.int32),
    }


def note_refusals(notes: Notes, torch: Any, cutwheel: Any) -> None:
    for name, call in calls(cutwheel, lambda *shape: torch.ones(shape).half()).items():
        with torch.no_grad():
            notes.add(f"on the CPU: {name}", call, NotImplementedError)


def note_fake_results(notes: Notes, torch: Any, cutwheel: Any) -> None:
    fake = importlib.import_module("torch._subclasses.fake_tensor").FakeTensorMode
    for dtype in (torch.float16, torch.bfloat16):
        with fake(), torch.no_grad():

            def make(*shape: int, dtype: Any = dtype) -> Any:
                return torch.empty(shape, dtype=dtype, device="cuda")

            for name, call in calls(cutwheel, make).items():
                notes.add(f"fake {dtype}: {name}", call)
            for name, call in scaled_calls(cutwheel, torch, make).items():
                notes.add(f"fake {dtype}: {name}", call)
            a, b = make(4, 16), make(16, 8)
            notes.add(f"fake {dtype}: out_dtype", lambda a=a, b=b: cutwheel.mm(a, b, torch.float32))  # type: ignore[misc]


def note_fake_errors(notes: Notes, torch: Any, cutwheel: Any) -> None:
    w = cutwheel
    fake = importlib.import_module("torch._subclasses.fake_tensor").FakeTensorMode
    with fake():

        def make(*shape: int, dtype: Any = torch.float16) -> Any:
            return torch.empty(shape, dtype=dtype, device="cuda")

        a, b, row = make(4, 16), make(16, 8), make(8)
        of = w.errors
        errors: list[tuple[type[Exception], str, Callable[[], object]]] = [
            (of.ShapeError, "rank", lambda: w.mm(a, row)),
            (of.ShapeError, "inner extent", lambda: w.mm(a, make(15, 8))),
            (of.ArgumentError, "activation", lambda: w.linear(a, b.t(), activation="swish")),
            (of.ArgumentError, "epilogue", lambda: w.gemm(a, b, "nonsense")),
            (of.ShapeError, "residual", lambda: w.linear(a, b.t(), activation="relu", residual=a)),
            (TypeError, "no tensor", lambda: w.mm(a, [1])),
            (TypeError, "None", lambda: w.linear(None, b)),
            (TypeError, "alpha", lambda: w.addmm(row, a, b, alpha="two")),
            (TypeError, "out_dtype", lambda: w.mm(a, b, "float32")),
            (TypeError, "operand", lambda: w.gemm(a, b, "bias_gelu", column=row)),
        ]
        for error, name, call in errors:
            notes.add(f"error: {name}", call, error)


def note_gradients(notes: Notes, torch: Any, cutwheel: Any) -> None:
    """Backward, eager and compiled, on meta tensors, which run the meta functions."""

    def backward(activation: str | None, compiled: bool) -> list[Any]:
        def empty(*shape: int) -> Any:
            return torch.empty(shape, dtype=torch.float16, device="meta", requires_grad=True)

        def model(x: Any, weight: Any, bias: Any, gate: Any) -> Any:
            y = cutwheel.linear(x, weight, bias, activation=activation)
            h = cutwheel.gated_linear(y, gate) if activation in (None, "gelu") else y
            return cutwheel.mm(h, cutwheel.addmm(bias[:1], weight, weight.t()))

        inputs = [empty(4, 16), empty(8, 16), empty(8), empty(16, 8)]
        run: Any = model
        if compiled:
            torch._dynamo.reset()
            run = torch.compile(model, backend="aot_eager", fullgraph=True)
        run(*inputs).sum().backward()
        return [item.grad for item in inputs if item.grad is not None]

    for activation in (None, "relu", "gelu", "leaky_relu"):
        for compiled in (False, True):
            name = f"gradients of {activation}{', compiled' if compiled else ''}"
            notes.add(name, lambda a=activation, c=compiled: backward(a, c))  # type: ignore[misc]

    def of_module(name: str) -> list[Any]:
        options = {"device": "meta", "dtype": torch.bfloat16}
        module = getattr(cutwheel.nn, name)(16, 8, **options)
        module(torch.empty(4, 16, **options)).sum().backward()
        return [parameter.grad for parameter in module.parameters()]

    for name in ("Linear", "GatedMLP"):
        notes.add(f"gradients of nn.{name}", lambda name=name: of_module(name))  # type: ignore[misc]


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(probe(), indent=1), encoding="utf-8")
