"""Small models of Transformers with random weights, one of each family in cutwheel.models."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

Tensor = torch.Tensor

VOCABULARY = 64


class Family(NamedTuple):
    model: str
    """the class in transformers"""
    config: dict[str, Any]
    replaced: dict[str, int]
    """how many modules are computed by what"""
    draw: str = "tokens"
    quantised: bool = True


_DECODER: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_HEADS = {**_DECODER, "head_dim": 32}
_MOE = {**_HEADS, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
_ENCODER: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
MERGED, GATED, PLAIN = "one linear", "gated_linear", "cutwheel.nn.Linear"
EXPERTS = "grouped_gated_linear and grouped_mm"
_LLAMA = {MERGED: 2, GATED: 2, PLAIN: 5}
_SPARSE = {MERGED: 2, EXPERTS: 2, PLAIN: 3}

FAMILIES = {
    "llama": Family("LlamaForCausalLM", _DECODER, _LLAMA),
    "mistral": Family("MistralForCausalLM", {**_HEADS, "sliding_window": None}, _LLAMA),
    "qwen2": Family("Qwen2ForCausalLM", _DECODER, _LLAMA),
    "qwen3": Family("Qwen3ForCausalLM", _HEADS, _LLAMA),
    "gemma": Family("GemmaForCausalLM", {**_HEADS, "hidden_act": "gelu_pytorch_tanh"}, _LLAMA),
    "gemma2": Family("Gemma2ForCausalLM", {**_HEADS, "query_pre_attn_scalar": 32}, _LLAMA),
    "gemma3": Family("Gemma3ForCausalLM", {**_HEADS, "query_pre_attn_scalar": 32}, _LLAMA),
    "phi": Family(
        "PhiForCausalLM",
        {**_DECODER, "hidden_act": "gelu_new"},
        {MERGED: 2, "cutwheel.nn.Linear with gelu_tanh": 2, PLAIN: 5},
    ),
    "phi3": Family("Phi3ForCausalLM", _DECODER, {GATED: 2, PLAIN: 7}),
    "mixtral": Family("MixtralForCausalLM", {**_HEADS, "num_local_experts": 4}, _SPARSE),
    "qwen3_moe": Family("Qwen3MoeForCausalLM", {**_MOE, "decoder_sparse_step": 1}, _SPARSE),
    "deepseek_v3": Family(
        "DeepseekV3ForCausalLM",
        {
            **{key: value for key, value in _DECODER.items() if key != "num_key_value_heads"},
            "num_key_value_heads": 4,
            "moe_intermediate_size": 64,
            "n_routed_experts": 8,
            "num_experts_per_tok": 2,
            "n_group": 2,
            "topk_group": 1,
            "n_shared_experts": 1,
            "first_k_dense_replace": 1,
            "q_lora_rank": 64,
            "kv_lora_rank": 64,
            "qk_rope_head_dim": 16,
            "qk_nope_head_dim": 32,
            "v_head_dim": 32,
        },
        # A dense MLP, and the shared experts of the other layer.
        {MERGED: 2, GATED: 2, EXPERTS: 1, PLAIN: 9},
    ),
    "gpt_oss": Family(
        "GptOssForCausalLM",
        {**_HEADS, "num_local_experts": 4, "num_experts_per_tok": 2},
        {MERGED: 2, "grouped_mm, and the gate by torch": 2, PLAIN: 3},
    ),
    "bert": Family(
        "BertForMaskedLM",
        _ENCODER,
        {MERGED: 2, "cutwheel.nn.Linear with gelu": 2, PLAIN: 6},
    ),
    "vit": Family(
        "ViTModel",
        {
            **{k: v for k, v in _ENCODER.items() if not k.startswith(("vocab", "max"))},
            "image_size": 32,
            "patch_size": 8,
        },
        {MERGED: 2, "cutwheel.nn.Linear with gelu": 2, PLAIN: 5},
        "images",
    ),
    "whisper": Family(
        "WhisperForConditionalGeneration",
        {
            "vocab_size": VOCABULARY,
            "num_mel_bins": 16,
            "d_model": 128,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 256,
            "decoder_ffn_dim": 256,
            "max_source_positions": 32,
            "max_target_positions": 32,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "decoder_start_token_id": 1,
        },
        # Of 6 attention blocks 2 are cross-attention, whose projections are single ones.
        {MERGED: 4, "cutwheel.nn.Linear with gelu": 4, PLAIN: 17},
        "speech",
    ),
}


def build(name: str, **options: Any) -> Any:
    """A model in eval mode, float32, with weights that tell its results apart."""
    transformers: Any = importlib.import_module("transformers")
    family = FAMILIES[name]
    kind = getattr(transformers, family.model)
    config = kind.config_class(**{**family.config, **options})
    torch.manual_seed(5)
    model = kind(config).eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if parameter.dim() > 1:
                fan_in = parameter.shape[-1]
                torch.nn.init.normal_(parameter, std=0.7 * fan_in**-0.5)
            elif "norm" not in key.lower():
                torch.nn.init.normal_(parameter, std=0.1)
    return model


def inputs(name: str, device: str = "cpu", dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    """Arguments of the model."""
    made = torch.Generator().manual_seed(7)
    tokens = torch.randint(3, VOCABULARY, (2, 16), generator=made).to(device)
    draw = FAMILIES[name].draw
    if draw == "images":
        images = torch.randn(2, 3, 32, 32, generator=made)
        return {"pixel_values": images.to(device, dtype)}
    if draw == "speech":
        features = torch.randn(2, 16, 64, generator=made)
        return {"input_features": features.to(device, dtype), "decoder_input_ids": tokens}
    return {"input_ids": tokens, **({} if "bert" in name else {"use_cache": False})}


def result(model: Callable[..., Any], given: dict[str, Any]) -> Tensor:
    """Logits, or what stands in their place."""
    output = model(**given)
    found: Tensor = output.logits if hasattr(output, "logits") else output.last_hidden_state
    return found


def weights_of(model: torch.nn.Module) -> dict[str, Tensor]:
    """Parameters under the original's names."""
    kept = {id(p) for p in model.parameters()}
    state = model.state_dict(keep_vars=True)
    return {k: v for k, v in state.items() if id(v) in kept or v.grad_fn is not None}


def gradients_of(model: torch.nn.Module) -> dict[str, Tensor]:
    """Gradients under the original's names: those of joined parameters are taken apart."""
    kept = [(p, p.detach().clone()) for p in model.parameters()]
    with torch.no_grad():
        for parameter, _ in kept:
            assert parameter.grad is not None
            parameter.copy_(parameter.grad)
        found = {k: v.clone() for k, v in model.state_dict().items()}
        for parameter, value in kept:
            parameter.copy_(value)
    buffers = {name for name, _ in model.named_buffers()}
    return {k: v for k, v in found.items() if k not in buffers}


def gradients(model: Any, given: dict[str, Any]) -> dict[str, Tensor]:
    """Of a loss that depends on every logit."""
    model.zero_grad(set_to_none=True)
    found = result(model, given)
    made = torch.Generator().manual_seed(11)
    grad = torch.randn(found.shape, generator=made).to(found.device, found.dtype)
    found.backward(grad)
    for parameter in model.parameters():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    return gradients_of(model)
