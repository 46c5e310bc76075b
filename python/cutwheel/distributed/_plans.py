"""Parallel styles: how parallelize_module splits cutwheel's modules, and what goes in and out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Replicate,
    Shard,
    distribute_module,
    distribute_tensor,
)
from torch.distributed.tensor.parallel import ColwiseParallel as TorchColwise
from torch.distributed.tensor.parallel import ParallelStyle
from torch.distributed.tensor.parallel import RowwiseParallel as TorchRowwise
from torch.distributed.tensor.placement_types import Placement

from ..nn import GatedMLP, GroupedExperts, ScaledLinear
from ..ops._sharding._calls import redistributed
from ..ops._sharding._layout import splits_into_groups
from ..ops._sharding._layouts import PIECE
from ..ops.scaled._recipes import BLOCK

_Partition = Callable[[str, torch.nn.Module, DeviceMesh], None]


def _as_dtensor(tensor: Any, mesh: DeviceMesh, layout: Placement) -> DTensor:
    if isinstance(tensor, DTensor):
        return tensor
    return DTensor.from_local(tensor, mesh, [layout], run_check=False)


def _split(tensor: Tensor, mesh: DeviceMesh, placement: Placement, source: int | None) -> DTensor:
    """distribute_tensor, also of dtypes that collectives do not know."""
    if tensor.dtype.itemsize > 1 or tensor.dtype == torch.int8 or tensor.is_meta:
        return distribute_tensor(tensor, mesh, [placement], src_data_rank=source)
    spread = distribute_tensor(tensor.view(torch.uint8), mesh, [placement], src_data_rank=source)
    local = spread.to_local().view(tensor.dtype)
    return DTensor.from_local(
        local, mesh, [placement], run_check=False, shape=tensor.shape, stride=tensor.stride()
    )


def _split_entry(
    module: torch.nn.Module,
    name: str,
    mesh: DeviceMesh,
    placement: Placement,
    source: int | None,
) -> None:
    """Splits a parameter or buffer, if the module has it."""
    tensor = getattr(module, name, None)
    if tensor is None or isinstance(tensor, DTensor):
        return
    split = _split(tensor.detach(), mesh, placement, source)
    if name in module._buffers:
        module.register_buffer(name, split)
    else:
        parameter = torch.nn.Parameter(split, requires_grad=tensor.requires_grad)
        module.register_parameter(name, parameter)


def _distribute(module: torch.nn.Module, mesh: DeviceMesh, partition: _Partition) -> None:
    """distribute_module; torch 2.10's has all parameters that it replicates require a gradient."""
    frozen = [name for name, each in module.named_parameters() if not each.requires_grad]
    distribute_module(module, mesh, partition)
    for name in frozen:
        module.get_parameter(name).requires_grad_(False)


def _check_mesh(style: str, mesh: DeviceMesh) -> None:
    if mesh.ndim != 1:
        raise ValueError(
            f"{style}: the mesh has {mesh.ndim} dimensions; expected one: pass the submesh for "
            'tensor or expert parallelism, such as mesh["tp"]'
        )


def _check_groups(style: str, name: str, size: int, group: int, mesh: DeviceMesh) -> None:
    if not splits_into_groups(size, group, mesh):
        raise ValueError(
            f"{style}: {name} is {size}, and {mesh.size()} devices share it in groups of {group}; "
            f"expected a multiple of {group * mesh.size()}"
        )


class _Hooks:
    """Layouts of a module's tensors, from those outside to those inside and back."""

    def __init__(
        self,
        mesh: DeviceMesh,
        inputs: Placement,
        inside: Placement,
        residual: Placement,
        outputs: Placement,
        use_local_output: bool,
    ) -> None:
        self.mesh = mesh
        self.inputs, self.inside = inputs, inside
        self.residual, self.outputs = residual, outputs
        self.use_local_output = use_local_output

    def enter(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = dict(zip(("input", "residual"), args, strict=False)) | kwargs
        input = _as_dtensor(given.pop("input"), self.mesh, self.inputs)
        input = redistributed(input, self.mesh, [self.inside], async_op=True)
        residual = given.pop("residual", None)
        if residual is not None:
            given["residual"] = _as_dtensor(residual, self.mesh, self.residual)
        return (input,), given

    def leave(self, module: Any, args: Any, output: Any) -> Any:
        output = redistributed(output, self.mesh, [self.outputs], async_op=True)
        return output.to_local() if self.use_local_output else output

    def install(self, module: torch.nn.Module, partition: _Partition) -> torch.nn.Module:
        _distribute(module, self.mesh, partition)
        module.register_forward_pre_hook(self.enter, with_kwargs=True)
        module.register_forward_hook(self.leave)
        return module


def _installed(
    style: ColwiseParallel | RowwiseParallel,
    module: torch.nn.Module,
    mesh: DeviceMesh,
    inside: Placement,
) -> torch.nn.Module:
    """inside: the placement of the input where the module multiplies"""
    _check_mesh(type(style).__name__, mesh)
    layouts = style.input_layouts[0], inside, style.residual_layouts, style.output_layouts[0]
    return _Hooks(mesh, *layouts, style.use_local_output).install(module, style._partition)


class ColwiseParallel(TorchColwise):
    """Output features split: torch's ColwiseParallel, for nn.ScaledLinear and a residual, too.

    Args:
        input_layouts: of the input outside; default: Replicate()
        output_layouts: of the result outside; default: Shard(-1)
        residual_layouts: of the residual of nn.Linear; default: output_layouts
        use_local_output: whether the result is a Tensor, this device's part

    Raises:
        ValueError: features that cannot be shared by the mesh as a recipe's scales want it
    """

    def __init__(
        self,
        *,
        input_layouts: Placement | None = None,
        output_layouts: Placement | None = None,
        residual_layouts: Placement | None = None,
        use_local_output: bool = True,
    ) -> None:
        super().__init__(
            input_layouts=input_layouts,
            output_layouts=output_layouts,
            use_local_output=use_local_output,
        )
        self.residual_layouts = residual_layouts or self.output_layouts[0]

    def _apply(self, module: torch.nn.Module, device_mesh: DeviceMesh) -> torch.nn.Module:
        if not isinstance(module, (torch.nn.Linear, ScaledLinear)):
            return super()._apply(module, device_mesh)
        return _installed(self, module, device_mesh, Replicate())

    def _partition(self, name: str, module: torch.nn.Module, mesh: DeviceMesh) -> None:
        names = ["weight", "bias"]
        if isinstance(module, ScaledLinear):
            names.append("weight_sum")
            group = BLOCK if module.recipe == "blockwise" else PIECE
            _check_groups("ColwiseParallel", "out_features", module.out_features, group, mesh)
            if module.recipe != "tensorwise":
                names.append("weight_scale")
        for entry in names:
            _split_entry(module, entry, mesh, Shard(0), self.src_data_rank)


class RowwiseParallel(TorchRowwise):
    """Input features split: torch's RowwiseParallel, for nn.ScaledLinear and a residual, too.

    The sums over the features of one device are reduced to output_layouts, before an activation of
    nn.Linear. nn.ScaledLinear quantises with the scales of all devices' features.

    Args:
        input_layouts: of the input outside; default: Shard(-1)
        output_layouts: of the result outside; default: Replicate(). With Shard(1) the reduction is
            a reduce-scatter: sequence parallelism
        residual_layouts: of the residual of nn.Linear; default: output_layouts
        use_local_output: whether the result is a Tensor, this device's part

    Raises:
        ValueError: features that cannot be shared by the mesh as a recipe's scales want it
    """

    def __init__(
        self,
        *,
        input_layouts: Placement | None = None,
        output_layouts: Placement | None = None,
        residual_layouts: Placement | None = None,
        use_local_output: bool = True,
    ) -> None:
        super().__init__(
            input_layouts=input_layouts,
            output_layouts=output_layouts,
            use_local_output=use_local_output,
        )
        self.residual_layouts = residual_layouts or self.output_layouts[0]

    def _apply(self, module: torch.nn.Module, device_mesh: DeviceMesh) -> torch.nn.Module:
        if not isinstance(module, (torch.nn.Linear, ScaledLinear)):
            return super()._apply(module, device_mesh)
        return _installed(self, module, device_mesh, Shard(-1))

    def _partition(self, name: str, module: torch.nn.Module, mesh: DeviceMesh) -> None:
        source = self.src_data_rank
        if isinstance(module, ScaledLinear):
            group = BLOCK if module.recipe == "blockwise" else PIECE
            _check_groups("RowwiseParallel", "in_features", module.in_features, group, mesh)
            if module.recipe == "blockwise":
                _split_entry(module, "weight_scale", mesh, Shard(1), source)
        _split_entry(module, "weight", mesh, Shard(1), source)


class GatedMLPParallel(ParallelStyle):
    """nn.GatedMLP with the features between split: gate and up colwise, down rowwise.

    Args:
        input_layouts: of the input outside; default: Replicate(). Shard(1) is gathered: sequence
            parallelism
        output_layouts: of the result outside; default: Replicate(). Shard(1) is a reduce-scatter
        residual_layouts: of the residual; default: output_layouts
        use_local_output: whether the result is a Tensor, this device's part

    Raises:
        TypeError: the module is no GatedMLP
        ValueError: packed parameters whose pairs of rows the mesh cannot share
    """

    def __init__(
        self,
        *,
        input_layouts: Placement | None = None,
        output_layouts: Placement | None = None,
        residual_layouts: Placement | None = None,
        use_local_output: bool = True,
    ) -> None:
        super().__init__()
        self.input_layouts = input_layouts or Replicate()
        self.output_layouts = output_layouts or Replicate()
        self.residual_layouts = residual_layouts or self.output_layouts
        self.use_local_output = use_local_output

    def _apply(self, module: torch.nn.Module, device_mesh: DeviceMesh) -> torch.nn.Module:
        _check_mesh("GatedMLPParallel", device_mesh)
        if not isinstance(module, GatedMLP):
            raise TypeError(
                f"GatedMLPParallel: the module is a {type(module).__name__}; expected a "
                "cutwheel.nn.GatedMLP: use ColwiseParallel and RowwiseParallel for others' layers"
            )
        if module.gate_up_weight is not None:
            _check_pairs("GatedMLPParallel", module.intermediate_size, device_mesh)
        layouts = self.input_layouts, Replicate(), self.residual_layouts, self.output_layouts
        hooks = _Hooks(device_mesh, *layouts, self.use_local_output)
        return hooks.install(module, self._partition)

    def _partition(self, name: str, module: torch.nn.Module, mesh: DeviceMesh) -> None:
        source = self.src_data_rank
        if isinstance(module, GatedMLP):
            _split_entry(module, "gate_up_weight", mesh, Shard(0), source)
        elif name in ("gate_proj", "up_proj"):
            _split_entry(module, "weight", mesh, Shard(0), source)
        elif name == "down_proj":
            _split_entry(module, "weight", mesh, Shard(1), source)


def _check_pairs(style: str, features: int, mesh: DeviceMesh) -> None:
    if features % mesh.size():
        raise ValueError(
            f"{style}: intermediate_size is {features}; expected a multiple of {mesh.size()}, the "
            "size of the mesh: each device needs whole pairs of rows of gate and up"
        )


class ExpertParallel(ParallelStyle):
    """nn.GroupedExperts with the experts, or the features between, split.

    Every device gets all tokens of the mesh, and computes those of its experts, or its features of
    all experts; the results are summed to output_layouts. Any number of tokens may go to any
    expert.

    Args:
        input_layouts: of input, expert_ids and expert_weights outside; default: Replicate().
            Shard(0), of tokens, is gathered
        output_layouts: of the result outside; default: that of input_layouts. Shard(0) is a
            reduce-scatter
        split: "experts" (expert parallelism; the last devices may have fewer) or "features" (tensor
            parallelism)
        use_local_output: whether the result is a Tensor, this device's part
        dispatch: "all_gather", as above, or "all_to_all": rows go to the devices of their experts,
            and results back, as nn.GroupedExperts does with a process group. Then tensors outside
            are plain ones, of any number of tokens on each device

    Raises:
        TypeError: the module is no GroupedExperts
        ValueError: another `split` or `dispatch`; "all_to_all" with layouts other than Shard(0) or
            with split features; features whose pairs of rows the mesh cannot share
    """

    def __init__(
        self,
        *,
        input_layouts: Placement | None = None,
        output_layouts: Placement | None = None,
        split: Literal["experts", "features"] = "experts",
        use_local_output: bool = True,
        dispatch: Literal["all_gather", "all_to_all"] = "all_gather",
    ) -> None:
        super().__init__()
        if dispatch not in ("all_gather", "all_to_all"):
            raise ValueError(
                f"ExpertParallel: dispatch is {dispatch!r}; expected 'all_gather' or 'all_to_all'"
            )
        if split not in ("experts", "features"):
            raise ValueError(
                f"ExpertParallel: split is {split!r}; expected 'experts' or 'features'"
            )
        if dispatch == "all_to_all":
            tokens: Placement = Shard(0)
            layouts = (input_layouts or tokens, output_layouts or tokens)
            if layouts != (tokens, tokens) or split != "experts" or not use_local_output:
                raise ValueError(
                    "ExpertParallel: dispatch is 'all_to_all'; expected input_layouts and "
                    "output_layouts Shard(0), split 'experts' and use_local_output: each device "
                    "has tokens of its own"
                )
            input_layouts = tokens
        self.dispatch = dispatch
        self.input_layouts = input_layouts or Replicate()
        self.output_layouts = output_layouts or self.input_layouts
        self.split = split
        self.use_local_output = use_local_output

    def _apply(self, module: torch.nn.Module, device_mesh: DeviceMesh) -> torch.nn.Module:
        _check_mesh("ExpertParallel", device_mesh)
        if not isinstance(module, GroupedExperts):
            raise TypeError(
                f"ExpertParallel: the module is a {type(module).__name__}; expected a "
                "cutwheel.nn.GroupedExperts"
            )
        if self.split == "features":
            _check_pairs("ExpertParallel", module.intermediate_size, device_mesh)
        _distribute(module, device_mesh, self._partition)
        if self.dispatch == "all_to_all":
            module.process_group = device_mesh.get_group()
            return module

        def enter(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            names = ("input", "expert_ids", "expert_weights")
            given = dict(zip(names, args, strict=False)) | kwargs
            return tuple(self._gathered(given.pop(name), device_mesh) for name in names), given

        def leave(module: Any, args: Any, output: Any) -> Any:
            whole = DTensor.from_local(output, device_mesh, [Partial()], run_check=False)
            whole = whole.redistribute(device_mesh, [self.output_layouts], async_op=True)
            return whole.to_local() if self.use_local_output else whole

        module.register_forward_pre_hook(enter, with_kwargs=True)
        module.register_forward_hook(leave)
        return module

    def _gathered(self, tensor: Any, mesh: DeviceMesh) -> Tensor:
        whole = redistributed(_as_dtensor(tensor, mesh, self.input_layouts), mesh, [Replicate()])
        # Each device's gradient is that of its own experts or features.
        return whole.to_local(grad_placements=[Partial()])

    def _partition(self, name: str, module: torch.nn.Module, mesh: DeviceMesh) -> None:
        by_experts = self.split == "experts"
        for entry, features in (("gate_up_weight", 1), ("down_weight", 2)):
            place = Shard(0 if by_experts else features)
            _split_entry(module, entry, mesh, place, self.src_data_rank)
