"""Problems to measure: the listed shapes and those drawn at random, as groups of each section."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from cutwheel.tuning import draw, shapes
from cutwheel.tuning.shapes import Batched, Conv, Gemm, Grouped, Kind, Shape

Options = argparse.Namespace

SHAPES_FILE = Path(__file__).with_name("shapes.toml")
DRAWN = 12  # problems of each family, unless --drawn says how many
SEED = 20260
DTYPES = ("bf16", "f16", "tf32")  # of mm and addmm
LAYERS = (
    *("bias_gelu", "bias_residual", "gated_silu"),
    *("training_gelu", "training_gated_silu", "overhead"),
)
FP8 = ("fp8_fast", "fp8")  # with use_fast_accum, and promoted to float32 on the way
SCALED = (*FP8, "blockwise", "int8")
QUANTIZE = ("tensorwise", "rowwise", "blockwise_1x128", "blockwise_128x128", "rowwise_int8")
EXPERTS = ("forward", "dgrad", "wgrad", "fp8", "fp8_fast", "gated")
SKEWS = ("uniform", "skewed")
DIRECTIONS = ("fprop", "dgrad", "wgrad", "fused")
VOLUMES = ("volume_fprop", "volume_bias", "volume_dgrad", "volume_wgrad")
# Of convolutions in groups, by whether each channel is one.
IN_GROUPS = {
    is_depthwise: tuple(f"{name}_{direction}" for direction in DIRECTIONS[:3])
    for is_depthwise, name in ((True, "depthwise"), (False, "grouped"))
}
MODELS = ("resnet50", "convnext_t", "efficientnet_b0", "regnet_y_8gf", "mobilenet_v3_l")
BATCHES, SIDE = (1, 64), 224  # of their images
LATENTS = (1, 16, 3, 30, 52)  # of nine frames of 240 x 416
# Of a UNet: two images of 1024 x 1024, whose block has half the sides; and latents of 512 x 512.
DIFFUSION = {"unet_block": (2, 320, 64, 64), "image_decoder": (1, 4, 64, 64)}
# Prefills of one sequence, and steps of 64 and 1.
TOKENS = ((1, 4096), (1, 512), (64, 1), (1, 1))
TRANSFORMERS = {
    "llama": TOKENS,
    "llama_fp8": TOKENS,
    "llama_training": TOKENS[:1],
    "qwen3_moe": TOKENS[:1],
    "bert_large": ((16, 512),),
    "vit_l": ((64, 3, SIDE, SIDE),),
}
# Groups for which torch.compile is one more baseline, by section.
COMPILED = {
    "mm": ("mm",),
    "fused": ("bias_gelu", "bias_residual", "gated_silu"),
    "scaled": ("int8", "quantize"),
    "models": (*MODELS, "video_decoder", "resnet50_training", *DIFFUSION, *TRANSFORMERS),
}
# Of sections; the others have GEMMs.
KINDS: dict[str, Kind] = {"bmm": Batched, "grouped": Grouped, "conv": Conv}


class Model(NamedTuple):
    """The input of a model."""

    size: tuple[int, ...]

    def fields(self, _: str) -> dict[str, Any]:
        return {"input": list(self.size), "m": self.size[0]}

    def __str__(self) -> str:
        return " x ".join(map(str, self.size))


class Volume(NamedTuple):
    """x [N, C, D, H, W] with filters [K, C, 3, 3, 3], stride 1, one row of zeros around H and W,
    and so many planes of zeros in front of D and behind it."""

    n: int
    c: int
    d: int
    h: int
    w: int
    k: int
    front: int
    behind: int

    @property
    def input(self) -> tuple[int, ...]:
        return self[:5]

    @property
    def filter(self) -> tuple[int, ...]:
        return self.k, self.c, 3, 3, 3

    @property
    def output(self) -> tuple[int, ...]:
        return self.n, self.k, self.d + self.front + self.behind - 2, self.h, self.w

    @property
    def flops(self) -> int:
        """The same for fprop, dgrad and wgrad."""
        return 2 * math.prod(self.output) * math.prod(self.filter[1:])

    def fields(self, _: str) -> dict[str, Any]:
        """m: rows of the implicit GEMM"""
        return {"volume": list(self), "m": math.prod(self.output) // self.k}

    def __str__(self) -> str:
        volume = " x ".join(map(str, self.input))
        return f"{volume}, {self.k} of 3 x 3 x 3, zeros {self.front} + {self.behind}"


class Transposed(NamedTuple):
    """x [N, C, H, W] with filters [C, K, R, R]; `more` is torch's output_padding."""

    n: int
    c: int
    h: int
    w: int
    k: int
    r: int
    stride: int
    padding: int
    more: int

    @property
    def input(self) -> tuple[int, ...]:
        return self[:4]

    @property
    def filter(self) -> tuple[int, ...]:
        return self.c, self.k, self.r, self.r

    @property
    def output(self) -> tuple[int, ...]:
        sides = (
            (side - 1) * self.stride - 2 * self.padding + self.r + self.more
            for side in (self.h, self.w)
        )
        return self.n, self.k, *sides

    @property
    def flops(self) -> int:
        return 2 * self.n * self.h * self.w * math.prod(self.filter)

    def fields(self, _: str) -> dict[str, Any]:
        """m: rows of the implicit GEMM"""
        return {"transposed": list(self), "m": self.n * self.h * self.w}

    def __str__(self) -> str:
        image = " x ".join(map(str, self.input))
        return f"{image}, {self.k} of {self.r} x {self.r}, stride {self.stride}"


class Problem(NamedTuple):
    group: str
    """what is computed of the shape"""
    shape: Any
    """Gemm, Batched, Grouped, Conv, Volume, Transposed or Model"""
    variant: str = ""
    """recipes, joined by "+", or the skew of groups"""

    def fields(self) -> dict[str, Any]:
        """The fields that identify the problem in its row of results."""
        found: dict[str, Any] = {"group": self.group} | self.shape.fields(self.variant)
        return found

    def __str__(self) -> str:
        if self.group == "resnet50" and isinstance(self.shape, Conv):  # of older files
            return f"resnet50 {' x '.join(map(str, self.shape[:4]))}"
        return " ".join(filter(None, (self.group, self.variant, str(self.shape))))


@dataclass(frozen=True)
class Problems:
    """The problems of one section: listed ones, then those drawn at random."""

    listed: Sequence[Problem]
    drawn: Sequence[Problem] = ()

    @property
    def all(self) -> list[Problem]:
        return [*self.listed, *self.drawn]


def load(path: Path = SHAPES_FILE) -> dict[str, Any]:
    return shapes.read_toml(path)


def layers(table: Mapping[str, Any], quick: bool = False) -> list[Gemm]:
    """Every M of [fused] times every [N, K], its own or those of [gemm]"""
    fused = table["fused"]["quick"] if quick else table["fused"]
    return [Gemm(m, *nk) for nk in fused.get("nk") or table["gemm"]["nk"] for m in fused["m"]]


def compiled_shapes(table: Mapping[str, Any], name: str) -> set[Gemm]:
    """Shapes of [fused] or [gemm] with torch.compile among their baselines"""
    return {Gemm(*shape) for shape in table[name]["compile"]}


# ---- what is computed of which shapes: one group after another
def _scaled(wanted: Sequence[Any]) -> list[Problem]:
    variants = {group: "tensorwise+rowwise" if group in FP8 else group for group in SCALED}
    return [Problem(group, shape, variants[group]) for group in SCALED for shape in wanted]


def _quantize(table: Mapping[str, Any]) -> list[Problem]:
    found = table["scaled"]["quantize"]
    return [
        Problem("quantize", Gemm(m, 0, k), name)
        for name in QUANTIZE
        for m, k in found["w" if name == "blockwise_128x128" else "x"]
    ]


def _each(groups: Sequence[str], wanted: Sequence[Any]) -> list[Problem]:
    return [Problem(group, shape) for group in groups for shape in wanted]


def _convs(wanted: Sequence[Conv]) -> list[Problem]:
    """Those in groups have groups of problems of their own."""
    found = _each(DIRECTIONS, [shape for shape in wanted if shape.groups == 1])
    in_groups = [shape for shape in wanted if shape.groups > 1]
    for is_depthwise, names in IN_GROUPS.items():
        found += _each(names, [s for s in in_groups if (s.groups == s.c == s.k) == is_depthwise])
    return found


def _gradients(layers: Sequence[Gemm]) -> list[Problem]:
    """The two GEMMs of the backward pass of each linear layer."""
    return [
        *(Problem("dgrad", Gemm(m, k, n)) for m, n, k in layers),
        *(Problem("wgrad", Gemm(n, k, m)) for m, n, k in layers),
    ]


def _grouped(pairs: Sequence[tuple[Grouped, str]]) -> list[Problem]:
    return [Problem(group, shape, skew) for group in EXPERTS for shape, skew in pairs]


def _models(quick: bool) -> list[Problem]:
    batches = BATCHES[-1:] if quick else BATCHES
    images = {n: Model((n, 3, SIDE, SIDE)) for n in BATCHES}
    found = [Problem(name, images[n]) for name in MODELS[: 1 if quick else None] for n in batches]
    if quick:
        return found
    more = [Problem("video_decoder", Model(LATENTS)), Problem("resnet50_training", images[64])]
    more += [Problem(name, Model(size)) for name, size in DIFFUSION.items()]
    more += [Problem(name, Model(n)) for name, sizes in TRANSFORMERS.items() for n in sizes]
    return [*found, *more]


def _volumes(table: Mapping[str, Any], quick: bool) -> list[Problem]:
    """Gradients have as many zeros at both ends, which torch's function takes as an argument."""
    found = table["volumes"]["quick"] if quick else table["volumes"]
    layers = [Volume(*case) for case in found["cases"]]
    images = [Transposed(*case) for case in found["transposed"]]
    return [
        *_each(VOLUMES[:2], layers),
        *_each(VOLUMES[2:], [layer._replace(front=1, behind=1) for layer in layers]),
        *_each(["transposed"], images),
    ]


def of_section(name: str, given: Options) -> Problems:
    """None for `host` and `cold`, whose operands have one size."""
    op, table = name.partition("_")[0], load()
    if op in ("host", "cold"):
        return Problems([])
    if op == "models":
        return _only(Problems([] if given.shape else _models(given.quick)), given.only)
    if op == "volumes":
        return _only(Problems([] if given.shape else _volumes(table, given.quick)), given.only)
    kind = KINDS.get(op, Gemm)
    own: list[Shape] = [
        shapes.parse(text, kind, "--shape") for text in given.shape if shapes.fits(text, kind)
    ]
    wanted: Sequence[Any] = own
    if not given.shape:
        wanted = (
            layers(table, given.quick)
            if op == "fused"
            else shapes.listed(table, kind, quick=given.quick)
        )
    if op == "bmm":
        # Queries by keys by the width of a head; then queries by this by keys.
        values = [s._replace(n=s.k, k=s.n) for s in wanted]
        made = Problems([*_each(["scores"], wanted), *_each(["values"], values)])
        return _only(made, given.only)
    drawn = draw.drawn(table, kind, given.drawn, given.seed)
    if op == "fused":
        made = Problems(_each(LAYERS, wanted), _each(COMPILED["fused"], drawn))
    elif op == "scaled":
        quantized = [] if given.shape else _quantize(table)
        made = Problems([*_scaled(wanted), *quantized], _scaled(drawn))
    elif op == "grouped":
        made = Problems(_grouped([(s, skew) for s in wanted for skew in SKEWS]), _grouped(drawn))
    elif op == "conv":
        layers_of_groups = [Conv(*case) for case in table["conv"]["groups"]["cases"]]
        more = [] if given.shape else layers_of_groups[:: 8 if given.quick else 1]
        made = Problems(_convs([*wanted, *more]), _convs(drawn))
    else:
        gradients = _gradients(drawn) if op == "mm" else []
        made = Problems(_each([op], wanted), [*_each([op], drawn), *gradients])
    return _only(made, given.only)


def _only(made: Problems, pattern: str) -> Problems:
    only = re.compile(pattern)
    return Problems(
        *([p for p in some if only.search(str(p))] for some in (made.listed, made.drawn))
    )
