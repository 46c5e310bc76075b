"""Models of Transformers for the suite `models`: random weights, in eval mode.

Wide as those of the name, and of few layers, since all layers of a model are alike. Each is a
module of one tensor, tokens, images or hidden states, and returns one.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from cutwheel.tuning.measure import Operands

Tensor = torch.Tensor
Model = torch.nn.Module

VOCABULARY = 4096


class Entry(NamedTuple):
    kind: str
    """the class in transformers, or a module and the class in it"""
    config: str
    options: Mapping[str, Any]
    takes: str
    """tokens, images or states"""


ENTRIES = {
    # A layer of Llama 3 8B, with an embedding and a head that are small beside it.
    "llama": Entry(
        "LlamaForCausalLM",
        "LlamaConfig",
        {
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 1,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "vocab_size": VOCABULARY,
            "max_position_embeddings": 8192,
            "use_cache": False,
        },
        "tokens",
    ),
    # The experts of a layer of Qwen3 30B A3B, and their router.
    "qwen3_moe": Entry(
        "models.qwen3_moe.modeling_qwen3_moe.Qwen3MoeSparseMoeBlock",
        "Qwen3MoeConfig",
        {
            "hidden_size": 2048,
            "moe_intermediate_size": 768,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "norm_topk_prob": True,
        },
        "states",
    ),
    "bert_large": Entry(
        "BertModel",
        "BertConfig",
        {
            "hidden_size": 1024,
            "intermediate_size": 4096,
            "num_hidden_layers": 4,
            "num_attention_heads": 16,
            "vocab_size": VOCABULARY,
            "max_position_embeddings": 512,
        },
        "tokens",
    ),
    "vit_l": Entry(
        "ViTModel",
        "ViTConfig",
        {
            "hidden_size": 1024,
            "intermediate_size": 4096,
            "num_hidden_layers": 4,
            "num_attention_heads": 16,
        },
        "images",
    ),
}


class Plain(torch.nn.Module):
    """A model whose result is a tensor."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        found: Any = self.model(x)
        for name in ("logits", "last_hidden_state"):
            found = getattr(found, name, found)
        result: Tensor = found
        return result


def make(
    name: str, device: str, dtype: torch.dtype, changed: Mapping[str, Any] | None = None
) -> Model:
    """A model of ENTRIES; `changed` are options of its configuration in place of those.

    Raises:
        ImportError: transformers is not there
    """
    entry = ENTRIES[name]
    transformers: Any = importlib.import_module("transformers")
    where, _, kind = entry.kind.rpartition(".")
    module = importlib.import_module(f"transformers.{where}") if where else transformers
    config = getattr(transformers, entry.config)(**{**entry.options, **(changed or {})})
    config._attn_implementation = "sdpa"
    if where:  # what a whole model with experts would choose
        config._experts_implementation = "grouped_mm"
    torch.manual_seed(0)
    options = {"add_pooling_layer": False} if kind in ("BertModel", "ViTModel") else {}
    with torch.device(device):
        model: Model = getattr(module, kind)(config, **options)
    if where:  # a block alone, which nothing has initialised
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=config.initializer_range)
    return Plain(model.to(dtype).eval())


def inputs(name: str, size: tuple[int, ...], operands: Operands, model: Model) -> Tensor:
    """size: [N, T] tokens, [N, C, H, W] of images, [N, T] of states whose width the model has."""
    takes = ENTRIES[name].takes
    if takes == "tokens":
        return torch.randint(3, VOCABULARY, size, device=operands.device)
    if takes == "images":
        return operands.normal(*size)
    width: int = model.model.gate.weight.shape[1]  # type: ignore[union-attr, assignment]
    return operands.normal(*size, width)


def operations_of_experts(model: Model, x: Tensor) -> int:
    """Operations of grouped products in a block, which torch's counter does not know."""
    experts: Any = model.model.experts  # type: ignore[union-attr]
    each = sum(weight[0].numel() for weight in experts.parameters())
    gate: Any = model.model.gate  # type: ignore[union-attr]
    rows: int = x[..., 0].numel() * gate.top_k
    return 2 * rows * each
