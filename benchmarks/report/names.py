"""Names of groups, providers and baselines in documents, and the prose between tables."""

from __future__ import annotations

from .tables import BEST, Line

TITLES = {
    "mm": "Products: `mm`",
    "addmm": "Products with a bias: `addmm`",
    "bmm": "Products of attention, by head: `bmm`",
    "fused": "Linear layers with what follows them",
    "scaled": "fp8 and int8 products",
    "grouped": "Grouped products of experts",
    "conv": "Convolutions",
    "volumes": "Convolutions of volumes, and transposed ones",
    "models": "Models",
    "host": "CPU time of a call",
    "cold": "First call of a process",
}

_GROUPS = {
    "mm": "`mm`",
    "addmm": "`addmm` with a bias",
    "scores": "`bmm(q, k.mT)`",
    "values": "`bmm(p, v)`",
    "bias_residual": "`linear(residual=r)`",
    "gated_silu": '`gated_linear(activation="silu")`',
    "training_gelu": '`linear(activation="gelu")`, forward and backward',
    "training_gated_silu": '`gated_linear(activation="silu")`, forward and backward',
    "int8": "`scaled_mm`, int8, rowwise",
    "forward": "`grouped_mm`, forward",
    "dgrad": "`grouped_mm`, dgrad",
    "wgrad": "`grouped_mm`, wgrad",
    "gated": "`grouped_gated_linear`",
    "fprop": "`conv2d`",
    "fused": "`conv2d(bias, residual=r, activation='relu')`",
    "resnet50": "ResNet-50, 64 images, `cutwheel.fuse`",
}
_OF_SECTION = {
    ("mm", "dgrad"): "`mm`, layouts of dgrad",
    ("mm", "wgrad"): "`mm`, layouts of wgrad",
    ("grouped", "fp8"): "`scaled_grouped_mm`, fp8, rowwise",
    ("grouped", "fp8_fast"): "`scaled_grouped_mm`, fp8, rowwise, `use_fast_accum=True`",
    ("conv", "dgrad"): "`conv2d`, dgrad",
    ("conv", "wgrad"): "`conv2d`, wgrad",
    ("conv", "depthwise_fprop"): "`conv2d`, depthwise",
    ("conv", "depthwise_dgrad"): "`conv2d`, depthwise, dgrad",
    ("conv", "depthwise_wgrad"): "`conv2d`, depthwise, wgrad",
    ("conv", "grouped_fprop"): "`conv2d`, in groups",
    ("conv", "grouped_dgrad"): "`conv2d`, in groups, dgrad",
    ("conv", "grouped_wgrad"): "`conv2d`, in groups, wgrad",
    ("volumes", "volume_fprop"): "`conv3d`",
    ("volumes", "volume_bias"): "`conv3d` with a bias",
    ("volumes", "volume_dgrad"): "`conv3d`, dgrad",
    ("volumes", "volume_wgrad"): "`conv3d`, wgrad",
    ("volumes", "transposed"): "`conv_transpose2d` with a bias",
    ("models", "resnet50"): "ResNet-50",
    ("models", "convnext_t"): "ConvNeXt-T",
    ("models", "efficientnet_b0"): "EfficientNet-B0",
    ("models", "regnet_y_8gf"): "RegNetY-8GF",
    ("models", "mobilenet_v3_l"): "MobileNetV3-L",
    ("models", "video_decoder"): "decoder of videos",
    ("models", "resnet50_training"): "ResNet-50, a training step",
    ("models", "unet_block"): "block of a UNet as in SDXL",
    ("models", "image_decoder"): "decoder of images as in SDXL",
    ("models", "llama"): "layer of Llama 3 8B",
    ("models", "llama_fp8"): "layer of Llama 3 8B",
    ("models", "llama_training"): "layer of Llama 3 8B, a training step",
    ("models", "qwen3_moe"): "experts of Qwen3 30B A3B",
    ("models", "bert_large"): "BERT-large, 4 layers",
    ("models", "vit_l"): "ViT-L, 4 layers",
}
_BY = {
    "unet_block": "`cutwheel.fuse` and `replace_layers`",
    "image_decoder": "`cutwheel.fuse` and `replace_layers`",
    "llama_fp8": '`cutwheel.replace_layers(quantize="fp8")`',
    **dict.fromkeys(
        ("llama", "llama_training", "qwen3_moe", "bert_large", "vit_l"),
        "`cutwheel.replace_layers`",
    ),
    "resnet50_training": "",
}
"""of models, what computes them; others are by cutwheel.fuse"""
_SCALED = {"fp8": "fp8", "fp8_fast": "fp8, `use_fast_accum=True`", "blockwise": "fp8"}

_BASELINES = {
    ("mm", "torch"): "`torch.mm`",
    ("addmm", "torch"): "`torch.addmm`",
    ("scores", "torch"): "`torch.bmm`",
    ("scores", "torch, cublaslt"): "`torch.bmm` with cuBLASLt preferred",
    ("values", "torch"): "`torch.bmm`",
    ("values", "torch, cublaslt"): "`torch.bmm` with cuBLASLt preferred",
    ("bias_gelu", "eager"): "`F.gelu(F.linear(x, w, b))`",
    ("training_gelu", "eager"): "`F.gelu(F.linear(x, w, b))` and its backward",
    ("training_gated_silu", "eager"): "`F.silu(x @ g.T) * (x @ u.T)` and its backward",
    ("bias_residual", "eager"): "`F.linear(x, w, b) + r`",
    ("gated_silu", "eager"): "`F.silu(x @ g.T) * (x @ u.T)`",
    ("gated", "eager"): "`torch._grouped_mm`, then eager torch",
    ("fused", "eager"): "`F.relu(F.conv2d(x, w, b) + r)`",
    ("resnet50", "eager"): "eager torch",
    ("resnet50", "compile"): "torch.compile",
    ("fprop", "torch"): "`F.conv2d` (cuDNN)",
    ("depthwise_fprop", "torch"): "`F.conv2d` (cuDNN)",
    ("grouped_fprop", "torch"): "`F.conv2d` (cuDNN)",
    ("volume_fprop", "torch"): "`F.conv3d` of volumes padded before (cuDNN)",
    ("volume_bias", "torch"): "`F.conv3d` of volumes padded before (cuDNN)",
    ("transposed", "torch"): "`F.conv_transpose2d` (cuDNN)",
}
_ANY_BASELINE = {
    BEST: BEST,
    "torch, cublaslt": "`torch.mm` with cuBLASLt preferred",
    "eager": "the same in eager torch",
    "compile": "the same, torch.compile",
    "addmm_activation": "`torch._addmm_activation` (cuBLASLt)",
    "torch tensorwise": "`torch._scaled_mm`, tensorwise",
    "torch rowwise": "`torch._scaled_mm`, rowwise",
    "_int_mm + scaling": "`torch._int_mm`, then scaled in eager torch",
    "_int_mm + compiled scaling": "`torch._int_mm`, then scaled by torch.compile",
    "cudnn_convolution_add_relu": "`torch.cudnn_convolution_add_relu`",
    "Triton, one configuration": "a Triton kernel of one configuration",
    "bias": "cutwheel's own product with a bias",
}


def what(section: str, line: Line) -> str:
    group, side = line["group"], line["side"].removeprefix("cutwheel").strip()
    if group == "bias_gelu":
        return f'`linear(activation="{side}")`'
    if group == "overhead":
        return f"cost of: {side}"
    if section == "scaled" and group in _SCALED:
        return f"`scaled_mm`, {_SCALED[group]}, {side}"
    if group.startswith("quantize "):
        return f"`quantize`, {group.removeprefix('quantize ')}"
    name = _OF_SECTION.get((section, group)) or _GROUPS.get(group, group)
    if section == "models" and side == ", enabled":
        return f"{name}, `cutwheel.enable`"
    if section == "models" and (by := _BY.get(group, "`cutwheel.fuse`")):
        return f"{name}, {by}{side}"
    return name


def against(section: str, line: Line) -> str:
    group, baseline = line["group"], line["baseline"]
    if section == "mm" and baseline == "torch":
        return "`torch.mm`"
    if section == "grouped" and baseline == "torch":
        return "`torch._scaled_grouped_mm`" if group.startswith("fp8") else "`torch._grouped_mm`"
    if section in ("conv", "volumes") and group.endswith(("dgrad", "wgrad")):
        return "`aten.convolution_backward` (cuDNN)"
    if group == "blockwise":
        return "`torch._scaled_mm`, the same scales"
    text = _BASELINES.get((group, baseline)) or _ANY_BASELINE.get(baseline, baseline)
    return f"{text}, which computes {line['form']}" if line["form"] else text


METHOD = """\
Ratios are torch's time over cutwheel's: above 1, cutwheel is faster. "Ahead" counts the shapes at
1 or above.

- **Time** is GPU time of a call: replays of a CUDA graph of many calls (about 2 ms of them), timed
  by events around the replay. What a launch costs on the CPU is not in it; that is measured apart,
  below.
- **Same run**: all sides of a case run in one process on the same buffers, in alternating replays,
  so that clocks and temperature move them alike. A time is the median over 5 to 25 rounds.
- **Data** is random normal. Inputs rotate through so many buffers that more than twice the L2 is
  read before one comes back: weights come from device memory, as they do between the layers of a
  model.
- **Checked first**: the results of the very graph that is timed are compared with a reference in
  float64, or one that is exact for the operands. A wrong result is recorded as failed, never as a
  time.

Baselines are what torch itself has: `torch.mm` as it comes (cuBLAS) and with cuBLASLt as the
preferred library, where a table names it; `torch.addmm`, whose bias goes through cuBLASLt; eager
torch; `torch.compile(mode="max-autotune-no-cudagraphs")`, for the shapes that a note counts;
`torch._scaled_mm`, `torch._int_mm`, `torch._grouped_mm` and `torch._scaled_grouped_mm`; cuDNN with
`torch.backends.cudnn.benchmark` on. `F.linear` calls `torch.mm` or `torch.addmm`. "torch's best"
is the fastest of the baselines that compute the same, shape by shape.
[benchmarks/README.md](../benchmarks/README.md) has the details.
"""

NOTES = {
    "fused": """\
N of a gated layer is the width of its result. Lines "cost of" compare an epilogue with cutwheel's
own product with a bias: what a ratio lacks to 1 is what it costs.""",
    "scaled": """\
Operands are `float8_e4m3fn` or int8, results bfloat16. torch's best is the faster of the tensorwise
and the rowwise mode with the same accumulation.""",
    "grouped": """\
Rows are spread evenly over the groups, and by Zipf's law with one group of eight empty.""",
    "volumes": """\
bfloat16, channels last. Causal layers put zeros in front of the first frame; torch's side gets
volumes that have them already. Gradients are those of the same layers with zeros at both ends.""",
    "models": """\
bfloat16; convolutional ones channels last, with 1 and 64 images of 224 x 224. The decoder of videos
is one of causal convolutions, of nine frames of 240 x 416. Models of Transformers have 4096 tokens
and 512 in a sequence, or one token in each of 64 sequences and in one, without a cache. "compiled"
is torch.compile of the model that cutwheel has changed. Checked against the model in float32: no
side is more than twice as far off as eager torch, in fp8 as eager torch with roundings to fp8.""",
    "conv": """\
bfloat16, channels last. The first layer of ResNet-50 has an input of three channels, whose gradient
training does not need; it is measured all the same.""",
    "host": """\
Operands are so small that the GPU is not waited for; medians of alternating repeats, in
microseconds.""",
    "cold": """\
`import cutwheel` and the first call, beside torch's first call, in processes that have imported
torch and nothing else; medians in milliseconds. The ratio is torch's call to our import and call.
Memory is what is in use on the GPU after the call beyond torch's context and its allocator.""",
}

LIMITS = """\
Achieved TFLOP/s over the arithmetic intensity of each shape. The line is the limit of the data
sheet ({name}: {peaks} TFLOP/s without sparsity, {gbs:g} GB/s)."""
NO_LIMITS = """\
Achieved TFLOP/s over the arithmetic intensity of each shape. The limits of this GPU are not in the
list."""

# For files that were measured before shapes were drawn from released models.
KEPT_ASIDE = """\
Shapes kept aside: {count} cases of shapes drawn at random (seed {seed}). Kernels were not tuned
with them, and no cost model was fitted to them."""

DRAWN = """\
Drawn at random: {count} cases (seed {seed}) of layers of released models, whole or as tensor
parallelism cuts them, with any number of rows. Another seed draws others."""
