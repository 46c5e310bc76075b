"""Which modules a trace does not look into."""

from __future__ import annotations

import torch

from ..models.families import is_unit

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def is_leaf(module: torch.nn.Module) -> bool:
    """Whether a module's class is known: its forward need not be looked into. Gated linear units
    stay whole, so that replace_layers finds them."""
    package = type(module).__module__
    is_known = package.startswith(("torch.nn.", "torch.ao.nn.", "cutwheel.")) or is_unit(module)
    return is_known and not isinstance(module, (torch.nn.Sequential, torch.fx.GraphModule))


def why_opaque(module: torch.nn.Module) -> str | None:
    """Why calling the module does other things than its class says; None: it does not."""
    if isinstance(module, torch.jit.ScriptModule):
        return "it is a module of TorchScript"
    if any(getattr(module, name, None) for name in HOOKS):
        return "it has hooks, which would be lost"
    if "forward" in vars(module):
        return "its forward was replaced on the object"
    return None
