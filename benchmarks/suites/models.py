"""Convolutional models in bfloat16, channels last: as they are, and fused by cutwheel.fuse.

networks.py has the models. Inference is compared with eager torch and with torch.compile, which
also compiles the fused model, as one more of ours. `resnet50_training` is a step of SGD with
momentum, with bfloat16 weights, whose convolutions are those of torch or of cutwheel.nn. torch's
`backends.cudnn.benchmark` is on.

The reference is the model in float32. Results are right if they are at most twice as far from it as
those of eager torch, and a rounding to bfloat16.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

import cutwheel
from cutwheel.tuning.case import Case, Function, Provider, Reference, Setting, SkippedError
from cutwheel.tuning.measure import Error, deviation, exactly, tolerance

from .. import networks, problems
from ..compare import Limits, describe
from . import Suite, compiled
from .conv import tuned_cudnn

DTYPE = torch.bfloat16
INPUTS = 2
WIDTHS: dict[str, int] = {}  # of models that are to be narrower, as tests take them

Tensor = torch.Tensor
Model = torch.nn.Module


def _made(name: str, setting: Setting) -> tuple[Model, list[Tensor]]:
    """A model and its inputs."""
    size, device = setting.shape.size, str(setting.operands.device)
    try:
        model = networks.make(name, size[-1], device, DTYPE, WIDTHS.get(name, 0))
    except ImportError as error:
        raise SkippedError(f"needs torchvision ({error})") from None
    order = torch.channels_last if len(size) == 4 else torch.channels_last_3d
    x = [setting.operands.normal(*size).contiguous(memory_format=order) for _ in range(INPUTS)]
    return model, x


def operations(model: Model, x: Tensor) -> int:
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        copy.deepcopy(model).to("meta")(x.to("meta"))
    total: int = counter.get_total_flops()
    return total


def _allowed(eager: Provider, reference: Reference) -> Error:
    return tolerance(deviation(eager.call(0), reference(0)), DTYPE)


# ---- inference
def inference(name: str, setting: Setting) -> Case:
    made, x = _made(name, setting)
    precise = copy.deepcopy(made).float()
    fused = cutwheel.fuse(made)

    @functools.cache
    def reference(i: int) -> Tensor:
        with torch.no_grad():
            return exactly(precise, x[i], dtype=torch.float32)

    def provider(name: str, model: Function) -> Provider:
        def call(i: int) -> Tensor:
            with torch.no_grad():
                result: Tensor = model(x[i])
            return result

        return Provider(name, call)

    eager, ours = provider("eager", made), provider("cutwheel", fused)
    providers, left_out = [eager, ours], ""
    if setting.compiled:
        providers.insert(1, provider("compile", setting.compiled(made)))
        in_one = provider("cutwheel, compiled", setting.compiled(fused))
        try:
            in_one.call(0)
            providers.append(in_one)
        except RuntimeError as error:
            left_out = f"{in_one.name}: {describe(error)}"
    ours_all = [each.name for each in providers if each.name.startswith("cutwheel")]
    baselines = [each.name for each in providers if each.name not in ours_all]
    weights = sum(tensor.nbytes for tensor in made.state_dict().values())
    return Case(
        providers,
        len(x),
        reference,
        _allowed(eager, reference),
        operations(made, x[0]),
        x[0].nbytes + weights,
        [(side, baseline) for side in ours_all for baseline in baselines],
        left_out=left_out,
    )


# ---- training
def with_our_convolutions(model: Model) -> Model:
    """The model, with layers of cutwheel.nn that share its parameters."""
    for name, child in model.named_children():
        if type(child) is torch.nn.Conv2d:
            setattr(model, name, cutwheel.nn.Conv2d.from_conv(child))
        else:
            with_our_convolutions(child)
    return model


class Trainer:
    """One step: the loss, gradients, and the update of weights, which a rate of 0 leaves as they
    are, so that all steps have the same results."""

    def __init__(self, model: Model, around: Callable[[Function], Function] = lambda f: f) -> None:
        self.model = model.train()
        self.parameters = [*model.parameters()]
        self.sgd = torch.optim.SGD(self.parameters, lr=0.0, momentum=0.9)
        self.loss = around(self._loss)

    def _loss(self, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.model(x)
        return functional.cross_entropy(logits.float(), labels), logits

    def step(self, x: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        """The logits; gradients of the first layer's weights and of the last one's."""
        loss, logits = self.loss(x, labels)
        gradients = torch.autograd.grad(loss, self.parameters)
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient
        self.sgd.step()
        self.sgd.zero_grad()
        return logits.detach(), gradients[0], gradients[-2]


def training(name: str, setting: Setting) -> Case:
    made, x = _made(name, setting)
    for module in made.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = 0.1  # a mean of all batches asks the GPU for their number
    count = x[0].shape[0]
    labels = [torch.arange(count, device=x[0].device) * 7 % 1000 for _ in x]
    precise = Trainer(copy.deepcopy(made).float())

    @functools.cache
    def reference(i: int) -> tuple[Tensor, ...]:
        def step(images: Tensor) -> Any:
            return precise.step(images, labels[i])

        found: Any = exactly(step, x[i], dtype=torch.float32)
        return tuple(found)

    def provider(name: str, trainer: Trainer) -> Provider:
        return Provider(name, lambda i: trainer.step(x[i], labels[i]))

    eager = provider("eager", Trainer(copy.deepcopy(made)))
    ours = with_our_convolutions(copy.deepcopy(made))
    providers, left_out = [eager, provider("cutwheel", Trainer(ours))], ""
    if setting.compiled:
        providers.insert(1, provider("compile", Trainer(copy.deepcopy(made), setting.compiled)))
        in_one = provider("cutwheel, compiled", Trainer(copy.deepcopy(ours), setting.compiled))
        try:
            in_one.call(0)
            providers.append(in_one)
        except RuntimeError as error:
            left_out = f"{in_one.name}: {describe(error)}"
    sides = [each.name for each in providers if each.name.startswith("cutwheel")]
    baselines = [each.name for each in providers if each.name not in sides]
    weights = sum(tensor.nbytes for tensor in made.state_dict().values())
    return Case(
        providers,
        len(x),
        reference,
        _allowed(eager, reference),
        3 * operations(made.eval(), x[0]),
        x[0].nbytes + 5 * weights,  # read, and read and written with their momentum
        [(side, baseline) for side in sides for baseline in baselines],
        left_out=left_out,
    )


SUITE = Suite(
    {
        **{name: functools.partial(inference, name) for name in problems.MODELS},
        "video_decoder": functools.partial(inference, "video_decoder"),
        "resnet50_training": functools.partial(training, "resnet50"),
    },
    Limits(case_seconds=1.0, max_rounds=15),
    "bf16",
    context=lambda dtype: tuned_cudnn(),
    compiled=lambda function, mode: compiled(function, mode=mode, dynamic=False),
    mode="default",
)
