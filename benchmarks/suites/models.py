"""Whole models in bfloat16: as they are, and by one line of cutwheel.

networks.py has convolutional models, channels last, which cutwheel.fuse fuses, and parts of a
diffusion model, whose linear layers cutwheel.replace_layers replaces, too. transformer_models.py
has models of Transformers, for cutwheel.replace_layers, which are also run within
cutwheel.enabled(); `llama_fp8` is quantised. Inference is compared with eager torch and with
torch.compile, which also compiles the changed model, as one more of ours; where there are linear
layers or volumes to fuse it also compiles the unchanged one with cutwheel's pass.

`resnet50_training` and `llama_training` are a step of SGD with momentum, with bfloat16 weights.
torch's `backends.cudnn.benchmark` is on.

The reference is the model in float32. Results are right if they are at most twice as far from it as
those of eager torch, and a rounding to bfloat16; in fp8, as those of eager torch whose weights and
inputs of linear layers are rounded to fp8.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import cutwheel
from cutwheel.tuning.case import Case, Function, Provider, Reference, Setting, SkippedError
from cutwheel.tuning.measure import Error, deviation, exactly, tolerance

from .. import networks, problems, transformer_models
from ..compare import Limits, describe
from . import Suite, compiled
from .conv import tuned_cudnn

DTYPE = torch.bfloat16
INPUTS = 2
WIDTHS: dict[str, int] = {}  # of models that are to be narrower, as tests take them
OPTIONS: dict[str, Mapping[str, Any]] = {}  # of configurations, likewise
KEPT = ("lm_head",)  # which replace_layers does not quantise, either

Tensor = torch.Tensor
Model = torch.nn.Module
Inputs = tuple[Tensor, ...]


def _made(name: str, setting: Setting) -> tuple[Model, list[Inputs]]:
    """A model and what its calls take."""
    size, operands = setting.shape.size, setting.operands
    device = str(operands.device)
    if name in transformer_models.ENTRIES:
        try:
            model = transformer_models.make(name, device, DTYPE, OPTIONS.get(name))
        except ImportError as error:
            raise SkippedError(f"needs transformers ({error})") from None
        draw = functools.partial(transformer_models.inputs, name, size, operands, model)
        return model, [(draw(),) for _ in range(INPUTS)]
    width = WIDTHS.get(name, 0)
    try:
        model = networks.make(name, size[-1], device, DTYPE, width)
    except ImportError as error:
        raise SkippedError(f"needs torchvision ({error})") from None
    if name in networks.DIFFUSION:
        part, batch = networks.DIFFUSION[name], size[0]
        inputs = networks.example("unet").inputs
        return model, [inputs(part, batch, size[-1], device, DTYPE, width) for _ in range(INPUTS)]
    order = torch.channels_last if len(size) == 4 else torch.channels_last_3d
    x = [operands.normal(*size).contiguous(memory_format=order) for _ in range(INPUTS)]
    return model, [(each,) for each in x]


def operations(name: str, model: Model, x: Inputs) -> int:
    is_of_transformers = name in transformer_models.ENTRIES  # which wait for numbers of tensors
    device = x[0].device if is_of_transformers else torch.device("meta")
    # As products: the counter refuses attention with fewer heads of keys than of queries.
    attention = sdpa_kernel(SDPBackend.MATH) if is_of_transformers else nullcontext()
    with attention, FlopCounterMode(display=False) as counter, torch.no_grad():
        copied = model if is_of_transformers else copy.deepcopy(model).to(device)
        copied(*(each.to(device) for each in x))
    total: int = counter.get_total_flops()
    if name == "qwen3_moe":
        total += transformer_models.operations_of_experts(model, x[0])
    return total


def _wide(x: Inputs) -> Inputs:
    return tuple(each.float() if each.is_floating_point() else each for each in x)


def _allowed(eager: Provider, reference: Reference) -> Error:
    return tolerance(deviation(eager.call(0), reference(0)), DTYPE)


# ---- what one line makes of a model
def fused(model: Model) -> Model:
    return cutwheel.fuse(model)


def replaced(model: Model, quantize: str | None = None) -> Model:
    copied = copy.deepcopy(model)
    cutwheel.replace_layers(copied, quantize, keep=KEPT)
    return copied


def fused_and_replaced(model: Model) -> Model:
    made = cutwheel.fuse(model)
    cutwheel.replace_layers(made)
    return made


def enabled(function: Function) -> Function:
    def call(*given: Any) -> Any:
        with cutwheel.enabled():
            return function(*given)

    return call


def rounded_to_fp8(x: Tensor) -> Tensor:
    """Rowwise, as torch has no linear layer in fp8 of its own."""
    scale = x.float().abs().amax(-1, keepdim=True).clamp_min(1e-12) / 448
    return ((x.float() / scale).to(torch.float8_e4m3fn).float() * scale).to(x.dtype)


def with_roundings(model: Model) -> Model:
    """A copy whose linear layers multiply what stays of weights and inputs in fp8."""
    copied = copy.deepcopy(model)
    for name, module in copied.named_modules():
        if isinstance(module, torch.nn.Linear) and name.rpartition(".")[2] not in KEPT:
            module.weight.data = rounded_to_fp8(module.weight.data)
            module.register_forward_pre_hook(lambda _, given: (rounded_to_fp8(given[0]),))
    return copied


# ---- inference
def inference(
    name: str,
    change: Callable[[Model], Model],
    setting: Setting,
    *,
    with_enabled: bool = False,
    with_pass: bool = False,
    roundings: Callable[[Model], Model] | None = None,
) -> Case:
    """change: what cutwheel makes of the model; roundings: what counts as torch's error."""
    made, x = _made(name, setting)
    precise = copy.deepcopy(made).float()

    @functools.cache
    def reference(i: int) -> Tensor:
        with torch.no_grad():
            return exactly(lambda: precise(*_wide(x[i])), dtype=torch.float32)

    def provider(name: str, model: Function) -> Provider:
        def call(i: int) -> Tensor:
            with torch.no_grad():
                result: Tensor = model(*x[i])
            return result

        return Provider(name, call)

    changed = change(made)
    eager = provider("eager", made)
    ours = {"cutwheel": changed}
    baselines, left_out = [eager], ""
    if with_enabled:
        ours["cutwheel, enabled"] = enabled(made)
    if setting.compiled:
        baselines.append(provider("compile", setting.compiled(made)))
        ours["cutwheel, compiled"] = setting.compiled(changed)
    if setting.passed and with_pass:
        ours["cutwheel, pass"] = setting.passed(made)
    sides = []
    for side, model in ours.items():
        ready = provider(side, model)
        try:
            if side in ("cutwheel, compiled", "cutwheel, pass"):
                ready.call(0)
        except RuntimeError as error:
            left_out = f"{side}: {describe(error)}"
        else:
            sides.append(ready)
    weights = sum(tensor.nbytes for tensor in made.state_dict().values())
    judged = eager if roundings is None else provider("rounded", roundings(made))
    return Case(
        [*baselines, *sides],
        len(x),
        reference,
        _allowed(judged, reference),
        operations(name, made, x[0]),
        sum(each.nbytes for each in x[0]) + weights,
        [(side.name, baseline.name) for side in sides for baseline in baselines],
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
        return functional.cross_entropy(logits.float().flatten(0, -2), labels), logits

    def step(self, x: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        """The logits; gradients of the first layer's weights and of the last one's."""
        loss, logits = self.loss(x, labels)
        gradients = torch.autograd.grad(loss, self.parameters)
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient
        self.sgd.step()
        self.sgd.zero_grad()
        return logits.detach(), gradients[0], gradients[-2]


def training(name: str, change: Callable[[Model], Model], setting: Setting) -> Case:
    """change: what cutwheel makes of a copy of the model"""
    made, inputs = _made(name, setting)
    x = [each[0] for each in inputs]
    for module in made.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = 0.1  # a mean of all batches asks the GPU for their number
    count = x[0].numel() if name in transformer_models.ENTRIES else x[0].shape[0]
    labels = [torch.arange(count, device=x[0].device) * 7 % 1000 for _ in x]
    precise = Trainer(copy.deepcopy(made).float())

    @functools.cache
    def reference(i: int) -> tuple[Tensor, ...]:
        def step() -> Any:
            return precise.step(*_wide((x[i],)), labels[i])

        found: Any = exactly(step, dtype=torch.float32)
        return tuple(found)

    def provider(name: str, trainer: Trainer) -> Provider:
        return Provider(name, lambda i: trainer.step(x[i], labels[i]))

    eager = provider("eager", Trainer(copy.deepcopy(made)))
    ours = change(copy.deepcopy(made))
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
        3 * operations(name, made.eval(), inputs[0]),
        x[0].nbytes + 5 * weights,  # read, and read and written with their momentum
        [(side, baseline) for side in sides for baseline in baselines],
        left_out=left_out,
    )


SUITE = Suite(
    {
        **{name: functools.partial(inference, name, fused) for name in problems.MODELS},
        "video_decoder": functools.partial(inference, "video_decoder", fused, with_pass=True),
        "resnet50_training": functools.partial(training, "resnet50", with_our_convolutions),
        **{
            name: functools.partial(inference, name, fused_and_replaced, with_pass=True)
            for name in networks.DIFFUSION
        },
        **{
            name: functools.partial(inference, name, replaced, with_enabled=True, with_pass=True)
            for name in transformer_models.ENTRIES
        },
        "llama_fp8": functools.partial(
            inference,
            "llama",
            functools.partial(replaced, quantize="fp8"),
            roundings=with_roundings,
        ),
        "llama_training": functools.partial(training, "llama", replaced),
    },
    Limits(case_seconds=1.0, max_rounds=15),
    "bf16",
    context=lambda dtype: tuned_cudnn(),
    compiled=lambda function, mode: compiled(function, mode=mode, dynamic=False),
    passed=lambda function: compiled(function, dynamic=False, options=cutwheel.inductor_options()),
    mode="default",
)
