"""inductor_options() and the backend "cutwheel": how torch.compile is told of the pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torch import fx

_PASS, _MATMULS = "post_grad_custom_post_pass", "external_matmul"


def inductor_options(
    mode: str | None = None,
    *,
    options: Mapping[str, Any] | None = None,
    only_faster: bool = True,
) -> dict[str, Any]:
    """Options for ``torch.compile(model, options=cutwheel.inductor_options())``.

    Inductor then runs a pass over each graph, forward and backward, that puts kernels of cutwheel
    in the place of

    - matrix products (mm, addmm, bmm, baddbmm), with a bias, an activation, a residual or the gate
      of a gated linear unit that follow them,
    - convolutions of channels-last images, with a bias, an activation and a residual, and their
      gradients,
    - fp8 products (_scaled_mm) with tensorwise or rowwise scales,

    where the others' operands are float16 or bfloat16, and a kernel is expected to be faster than
    what Inductor would run. Sums stay in float32 up to the result, which is rounded once. With max-
    autotune, Inductor measures GEMMs that nothing follows, with cutwheel's as one more candidate.

    `cutwheel.inductor.report()` tells what was replaced, and why not the rest; so does the logger
    "cutwheel". Passes in `torch._inductor.config` run first.

    Args:
        mode: as of torch.compile, which takes either a mode or options: "default",
            "reduce-overhead", "max-autotune" or "max-autotune-no-cudagraphs"
        options: further ones of Inductor; they win over those of the mode
        only_faster: False: whatever kernels can take is replaced, as on a GPU that was not
            measured

    Returns:
        a new dict; also for ``torch._inductor.aoti_compile_and_package(inductor_configs=...)``

    Raises:
        TypeError: only_faster is no bool
        ValueError: an unknown mode
    """
    if not isinstance(only_faster, bool):
        kind = type(only_faster).__name__
        raise TypeError(f"inductor_options: only_faster is of type {kind}; expected a bool")
    from torch._inductor import config, list_mode_options

    from .graph_pass import CutwheelPass

    known: dict[str, Any] = list_mode_options()
    if mode is not None and mode not in known:
        expected = ", ".join(f'"{each}"' for each in known)
        raise ValueError(f'inductor_options: mode is "{mode}"; expected one of {expected}')
    found: dict[str, Any] = {
        **(known[mode] if mode is not None else {}),
        **{key.replace("-", "_"): value for key, value in (options or {}).items()},
    }
    before = found.get(_PASS, config.post_grad_custom_post_pass)
    found[_PASS] = CutwheelPass(only_faster, _others(before))
    if _is_autotuned(found):
        from .external_matmul import matmuls

        found[_MATMULS] = matmuls(found.get(_MATMULS, config.external_matmul))
    return found


def _others(passes: Any) -> tuple[Callable[[fx.Graph], None], ...]:
    """Passes that were set before, but for one of these options."""
    from .graph_pass import CutwheelPass

    if passes is None:
        return ()
    if isinstance(passes, CutwheelPass):
        return passes.previous
    return tuple(passes) if isinstance(passes, (list, tuple)) else (passes,)


def _is_autotuned(options: Mapping[str, Any]) -> bool:
    from torch._inductor import config

    return any(
        bool(options.get(name, getattr(config, name)))
        for name in ("max_autotune", "max_autotune_gemm")
    )


def backend(
    graph_module: fx.GraphModule,
    example_inputs: Sequence[Tensor],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Any:
    """``torch.compile(model, backend="cutwheel")``: Inductor with `inductor_options()`.

    torch finds it through the entry point of the installed package, whether or not cutwheel was
    imported.

    Args:
        graph_module, example_inputs: as torch gives them
        mode, options: of torch.compile; options of Inductor, and "only_faster" as of
            `inductor_options()`

    Returns:
        the compiled function

    Raises:
        ValueError: an unknown mode, or both a mode and options, as torch.compile has it
        RuntimeError: an option that Inductor does not know
    """
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx

    given = dict(options or {})
    only_faster = given.pop("only_faster", True)
    patches = inductor_options(mode, options=given, only_faster=only_faster)
    known = config.get_config_copy()
    for name in patches:
        if name not in known:
            raise RuntimeError(
                f"cutwheel: {name} is no option of Inductor; torch._inductor.list_options() has all"
            )
    return compile_fx(graph_module, list(example_inputs), config_patches=patches)


def reset() -> None:
    """Called by torch.compile's reset: CUDA graphs of the backend are dropped."""
    if torch.cuda.is_available():
        from torch._inductor.cudagraph_trees import reset_cudagraph_trees

        reset_cudagraph_trees()


backend.reset = reset  # type: ignore[attr-defined]
