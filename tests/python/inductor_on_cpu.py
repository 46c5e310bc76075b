"""Runs Inductor's passes on the CPU as if the GPU had every kernel, without compiling C++.

Graphs come from AOTAutograd with Inductor's decompositions, go through Inductor's own post-grad
passes with cutwheel's among them, and are interpreted: cutwheel's ops by the reference kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

if TYPE_CHECKING:
    from cpu_reference import CpuOps

Tensor = torch.Tensor
HOPPER = 9


def pretend_gpu(patch: Callable[[Any, str, Any], None]) -> None:
    """CPU tensors count as those of a Hopper GPU that has a kernel for every epilogue.

    Args:
        patch: setattr, or pytest's
    """
    from cutwheel.inductor.gains import Target
    from cutwheel.ops._common import batch_invariance
    from cutwheel.ops._common.epilogue import find

    def of(device: torch.device, only_faster: bool) -> Target:
        return Target(HOPPER, only_faster and not batch_invariance.enabled)

    def asked(
        self: Target,
        op: str,
        dtype: torch.dtype,
        layout: str,
        epilogue: str,
        out_dtype: torch.dtype | None = None,
    ) -> bool:
        return op == "scaled_mm" or find(epilogue) is not None

    patch(Target, "of", of)
    patch(Target, "has_kernel", asked)


class Compiled:
    """A function whose graphs went through the pass.

    Args:
        ops: the reference kernels
        function: what is compiled
        only_faster: as of `inductor_options`
        dynamic: as of torch.compile
    """

    def __init__(
        self,
        ops: CpuOps,
        function: Callable[..., Any],
        only_faster: bool = False,
        dynamic: bool | None = None,
    ) -> None:
        from cutwheel.inductor.graph_pass import CutwheelPass

        self.ops = ops
        self.graphs: list[fx.GraphModule] = []
        """as they came out of the passes"""
        self._pass = CutwheelPass(only_faster)
        torch._dynamo.reset()
        self._compiled = torch.compile(
            function, backend=self._backend, fullgraph=True, dynamic=dynamic
        )

    def _backend(self, graph: fx.GraphModule, inputs: list[Any]) -> Any:
        from torch._dynamo.backends.common import aot_autograd
        from torch._inductor.decomposition import select_decomp_table

        backend = aot_autograd(
            fw_compiler=self._compiler(False),
            bw_compiler=self._compiler(False),
            inference_compiler=self._compiler(True),
            decompositions=select_decomp_table(),
        )
        return backend(graph, inputs)

    def _compiler(self, is_inference: bool) -> Callable[..., Any]:
        from functorch.compile import make_boxed_func
        from torch._guards import detect_fake_mode
        from torch._inductor import config
        from torch._inductor.fx_passes.joint_graph import joint_graph_passes
        from torch._inductor.fx_passes.post_grad import post_grad_passes
        from torch._inductor.virtualized import V

        def compiler(graph: fx.GraphModule, inputs: list[Any]) -> Any:
            mode = detect_fake_mode(inputs)
            with (
                V.set_fake_mode(mode) if mode is not None else nullcontext(),
                config.patch(post_grad_custom_post_pass=self._pass),
            ):
                joint_graph_passes(graph)
                post_grad_passes(graph, is_inference)
            graph.recompile()
            self.graphs.append(graph)
            return make_boxed_func(graph.forward)

        return compiler

    def __call__(self, *given: Any, **named: Any) -> Any:
        self.ops.calls.clear()
        return self._compiled(*given, **named)

    def targets(self, index: int = -1) -> list[str]:
        """The operations of a graph, without overloads."""
        return [
            str(node.target).removesuffix(".default")
            for node in self.graphs[index].graph.nodes
            if node.op == "call_function"
        ]


def close(got: Any, wanted: Any) -> None:
    """In bfloat16: the fused one is rounded less often."""
    torch.testing.assert_close(got, wanted, rtol=2e-2, atol=2e-2)


def faked(graph: fx.GraphModule, inputs: tuple[Tensor, ...]) -> fx.GraphModule:
    """The graph with fake tensors at its nodes, as the pass finds them."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.passes.fake_tensor_prop import FakeTensorProp

    mode = FakeTensorMode(allow_non_fake_inputs=True)
    FakeTensorProp(graph, mode).propagate(*inputs)
    return graph


def constant_graph(
    function: Callable[..., Any], x: Tensor, freezing: bool = True
) -> fx.GraphModule:
    """The graph of a function whose other tensors are constants, as Inductor's freezing leaves
    them, after the pass."""
    from torch._inductor import config
    from torch._inductor.decomposition import select_decomp_table
    from torch.fx.experimental.proxy_tensor import make_fx

    from cutwheel.inductor.graph_pass import CutwheelPass

    with torch.no_grad():
        graph = make_fx(function, decomposition_table=select_decomp_table())(x)
        faked(graph, (x,))
        with config.patch(freezing=freezing):
            CutwheelPass(only_faster=False)(graph.graph)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph
