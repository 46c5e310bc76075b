"""cutwheel.replace_layers on reference kernels: what is replaced, state dicts, errors."""

from __future__ import annotations

import collections
import copy
import io
import os
import subprocess
import sys
from types import ModuleType
from typing import Any

import model_cases as cases
import pytest
import torch
from cpu_reference import CpuOps

Tensor = torch.Tensor
BRAIN = torch.bfloat16


@pytest.fixture(params=list(cases.FAMILIES))
def family(request: pytest.FixtureRequest) -> str:
    pytest.importorskip("transformers", reason="transformers is not installed")
    return str(request.param)


@pytest.fixture
def llama() -> Any:
    pytest.importorskip("transformers", reason="transformers is not installed")
    return cases.build("llama")


def test_results_and_state_dict(cutwheel: ModuleType, cpu_ops: CpuOps, family: str) -> None:
    model, given = cases.build(family), cases.inputs(family)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.no_grad():
        want = cases.result(model, given)
        report = cutwheel.replace_layers(model)
        torch.testing.assert_close(cases.result(model, given), want, rtol=1e-5, atol=1e-5)
    counts = collections.Counter(entry.by for entry in report.replaced)
    assert dict(counts) == cases.FAMILIES[family].replaced
    cross = [entry for entry in report.left if "another sequence" in entry.reason]
    assert len(report.left) == len(cross) == (2 if family == "whisper" else 0)

    saved = model.state_dict()
    assert {*saved} == {*state}
    for name, value in state.items():
        assert torch.equal(saved[name], value), name
    other = cases.build(family)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    other.load_state_dict(saved)
    for parameter in model.parameters():
        parameter.detach().zero_()
    for assign in (False, True):
        found = model.load_state_dict(state, assign=assign)
        assert (found.missing_keys, found.unexpected_keys) == ([], [])
        with torch.no_grad():
            torch.testing.assert_close(cases.result(model, given), want, rtol=1e-5, atol=1e-5)


def test_gradients(cutwheel: ModuleType, cpu_ops: CpuOps, family: str) -> None:
    model, given = cases.build(family), cases.inputs(family)
    want = cases.gradients(model, given)
    cutwheel.replace_layers(model)
    found = cases.gradients(model, given)
    assert {*found} == {*want}
    for name, grad in want.items():
        allowed = 1e-4 * float(grad.abs().max()) + 1e-6
        torch.testing.assert_close(found[name], grad, rtol=0, atol=allowed, msg=name)


def test_quantised(cutwheel: ModuleType, cpu_ops: CpuOps, family: str) -> None:
    """Every linear layer but those in keep; the result is near to what it was."""
    model, given = cases.build(family).to(BRAIN), cases.inputs(family, dtype=BRAIN)
    with torch.no_grad():
        want = cases.result(model, given).float()
        report = cutwheel.replace_layers(model, "fp8")
        found = cases.result(model, given).float()
    distance = (found - want).norm(dim=-1) / want.norm(dim=-1)
    assert 1e-3 < float(distance.median()) < 0.3
    plain = [name for name, m in model.named_modules() if isinstance(m, torch.nn.Linear)]
    # BERT's decoder has the weight of the embedding.
    assert {name.rpartition(".")[2] for name in plain} <= {"lm_head", "proj_out", "decoder"}
    reasons = ("is in keep", "its weight is another module's, too")
    assert {entry.name for entry in report.left if entry.reason.endswith(reasons)} == {*plain}
    again = model.state_dict()
    model.load_state_dict(again)
    with torch.no_grad():
        assert torch.equal(cases.result(model, given).float(), found)


@pytest.mark.parametrize("quantize", ["fp8_blockwise", "int8"])
def test_other_quantisations(
    cutwheel: ModuleType, cpu_ops: CpuOps, llama: Any, quantize: str
) -> None:
    given = cases.inputs("llama")
    with torch.no_grad():
        want = cases.result(llama, given)
        cutwheel.replace_layers(llama, quantize)
        found = cases.result(llama, given)
    assert float(((found - want).norm(dim=-1) / want.norm(dim=-1)).median()) < 0.3
    scaled = [m for m in llama.modules() if isinstance(m, cutwheel.nn.ScaledLinear)]
    recipe = "blockwise" if "block" in quantize else "rowwise"
    assert len(scaled) == 8
    assert {(m.recipe, m.weight.dtype) for m in scaled} == {
        (recipe, torch.int8 if quantize == "int8" else torch.float8_e4m3fn)
    }


def test_one_product_for_each_input(cutwheel: ModuleType, cpu_ops: CpuOps, llama: Any) -> None:
    cutwheel.replace_layers(llama)
    with torch.no_grad():
        cases.result(llama, cases.inputs("llama"))
    # For each layer qkv, o and down, and the gate; then the head.
    assert len([call for call in cpu_ops.calls if call[0] == "linear"]) == 2 * 3 + 1
    assert cpu_ops.names("linear_fused") == ["gated_silu"] * 2


def test_cross_attention_with_a_merged_block(cutwheel: ModuleType, cpu_ops: CpuOps) -> None:
    """Called with keys and values of another sequence, a merged block multiplies each by itself."""
    pytest.importorskip("transformers", reason="transformers is not installed")
    model = cases.build("whisper")
    block = model.model.encoder.layers[0].self_attn
    x, y = torch.randn(2, 5, 128), torch.randn(2, 7, 128)
    with torch.no_grad():
        want = block(x, key_value_states=y)[0]
        cutwheel.replace_layers(model)
        assert "merged_weight" in block._parameters
        torch.testing.assert_close(block(x, key_value_states=y)[0], want, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(block(x, y)[0], want, rtol=1e-5, atol=1e-5)


def test_a_layer_without_a_bias_gets_none(cutwheel: ModuleType, cpu_ops: CpuOps) -> None:
    """Whisper's k_proj: its share of the merged bias stays 0 in training."""
    pytest.importorskip("transformers", reason="transformers is not installed")
    model = cases.build("whisper")
    cutwheel.replace_layers(model)
    cases.gradients(model, cases.inputs("whisper"))
    block = model.model.encoder.layers[0].self_attn
    assert block._names == ("q_proj", "k_proj", "v_proj")
    assert not block.merged_bias.grad[128:256].any()
    assert block.merged_bias.grad[:128].any()


def test_generation_with_a_cache(cutwheel: ModuleType, cpu_ops: CpuOps, llama: Any) -> None:
    tokens = cases.inputs("llama")["input_ids"]
    options = {"max_new_tokens": 6, "do_sample": False, "use_cache": True}
    want = llama.generate(tokens, **options)
    cutwheel.replace_layers(llama)
    assert torch.equal(llama.generate(tokens, **options), want)


def test_copies_and_files(cutwheel: ModuleType, cpu_ops: CpuOps, llama: Any, tmp_path: Any) -> None:
    cutwheel.replace_layers(llama)
    given = cases.inputs("llama")
    with torch.no_grad():
        want = cases.result(llama, given)
        file = io.BytesIO()
        torch.save(llama, file)
        file.seek(0)
        for other in (copy.deepcopy(llama), torch.load(file, weights_only=False)):
            assert torch.equal(cases.result(other, given), want)
        llama.save_pretrained(tmp_path)
        loaded = type(llama).from_pretrained(tmp_path)
        torch.testing.assert_close(cases.result(loaded, given), want, rtol=1e-5, atol=1e-5)
    attention = llama.model.layers[0].self_attn
    base = type(loaded.model.layers[0].self_attn)
    assert isinstance(attention, base)
    assert type(attention) is not base


@pytest.mark.parametrize("family", ["llama", "qwen3_moe", "bert", "whisper"])
@pytest.mark.parametrize("quantize", [None, "fp8"])
def test_compiled(
    cutwheel: ModuleType, traced_on_cpu: CpuOps, family: str, quantize: str | None
) -> None:
    """As one graph: nothing in a replaced module breaks it."""
    pytest.importorskip("transformers", reason="transformers is not installed")
    model, given = cases.build(family), cases.inputs(family)
    cutwheel.replace_layers(model, quantize)
    with torch.no_grad():
        want = cases.result(model, given)
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(cases.result(compiled, given), want, rtol=1e-5, atol=1e-5)


def test_on_meta(cutwheel: ModuleType, family: str) -> None:
    """Before there are weights: they are loaded into the replaced model."""
    model = cases.build(family)
    state = model.state_dict()
    model = copy.deepcopy(model).to("meta")
    report = cutwheel.replace_layers(model)
    counts = collections.Counter(entry.by for entry in report.replaced)
    assert dict(counts) == cases.FAMILIES[family].replaced
    shapes = {name: value.shape for name, value in state.items()}
    assert {name: value.shape for name, value in model.state_dict().items()} == shapes
    found = model.load_state_dict(state, assign=True)
    assert (found.missing_keys, found.unexpected_keys) == ([], [])
    assert all(parameter.device.type == "cpu" for parameter in model.parameters())


# --- what is left


def left(report: Any, name: str) -> str:
    return next(entry.reason for entry in report.left if entry.name == name)


def test_what_is_left_says_why(cutwheel: ModuleType, cpu_ops: CpuOps, llama: Any) -> None:
    layers = llama.model.layers
    first, second = layers[0], layers[1]
    first.mlp.gate_proj.register_forward_hook(lambda *_: None)
    first.self_attn.q_proj.weight.requires_grad_(False)
    second.mlp.act_fn = torch.nn.Tanh()
    second.self_attn.v_proj = torch.nn.Sequential(second.self_attn.v_proj)
    second.self_attn.o_proj.weight = torch.nn.Parameter(second.self_attn.o_proj.weight.double())
    report = cutwheel.replace_layers(llama)
    prefix = "model.layers"
    assert "gate_proj: it has hooks" in left(report, f"{prefix}.0.mlp")
    assert left(report, f"{prefix}.0.mlp.gate_proj").startswith("it has hooks")
    assert "differ in requires_grad" in left(report, f"{prefix}.0.self_attn")
    assert left(report, f"{prefix}.1.mlp").endswith("no kernel has the activation Tanh")
    assert "v_proj: it is a Sequential" in left(report, f"{prefix}.1.self_attn")
    assert "dtype float64" in left(report, f"{prefix}.1.self_attn.o_proj")
    names = {entry.name for entry in report.replaced}
    # The layers of what was not merged are cutwheel's one by one.
    assert {f"{prefix}.0.mlp.up_proj", f"{prefix}.0.self_attn.q_proj"} <= names
    assert type(first.mlp.gate_proj) is torch.nn.Linear
    assert "gate_proj: it has hooks" in str(report)


def test_a_second_time_changes_nothing(cutwheel: ModuleType, cpu_ops: CpuOps, llama: Any) -> None:
    cutwheel.replace_layers(llama)
    before = {name: type(module) for name, module in llama.named_modules()}
    report = cutwheel.replace_layers(llama)
    assert report.replaced == report.left == ()
    assert {name: type(module) for name, module in llama.named_modules()} == before


def test_tied_weights_stay_tied(cutwheel: ModuleType, cpu_ops: CpuOps) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    model = cases.build("qwen2", tie_word_embeddings=True)
    model.tie_weights()
    cutwheel.replace_layers(model)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    model = cases.build("qwen2", tie_word_embeddings=True)
    model.tie_weights()
    report = cutwheel.replace_layers(model, "fp8", keep=())
    assert left(report, "lm_head") == "its weight is another module's, too"


def test_layers_of_any_model(cutwheel: ModuleType, cpu_ops: CpuOps) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
    x = torch.randn(3, 8)
    want = model(x)
    weight = model[0].weight
    report = cutwheel.replace_layers(model)
    assert [type(layer) for layer in model[::2]] == [cutwheel.nn.Linear] * 2
    assert model[0].weight is weight
    torch.testing.assert_close(model(x), want)
    assert str(report).splitlines()[:2] == [
        "Sequential: 2 modules replaced, 0 left",
        "  * (Linear): cutwheel.nn.Linear (x 2)",
    ]


def test_mismatches_while_loading(cutwheel: ModuleType, cpu_ops: CpuOps, llama: Any) -> None:
    state = llama.state_dict()
    cutwheel.replace_layers(llama)
    name = "model.layers.0.self_attn.k_proj.weight"
    own = llama.state_dict()[name].clone()
    missing = {key: value for key, value in state.items() if key != name}
    assert llama.load_state_dict(missing, strict=False).missing_keys == [name]
    assert torch.equal(llama.state_dict()[name], own)
    with pytest.raises(RuntimeError, match=f"size mismatch for {name}"):
        llama.load_state_dict({**state, name: state[name][:-1]})


def test_errors(cutwheel: ModuleType, llama: Any) -> None:
    linear = torch.nn.Linear(16, 16)
    with pytest.raises(TypeError, match="replace_layers: model is of type int; expected a module"):
        cutwheel.replace_layers(3)
    with pytest.raises(TypeError, match="which is compiled"):
        cutwheel.replace_layers(torch.compile(linear))
    with pytest.raises(ValueError, match="quantize is 'int4'; expected None or one of 'fp8'"):
        cutwheel.replace_layers(linear, "int4")
    with pytest.raises(NotImplementedError, match="the model is on cpu; expected a GPU: call"):
        cutwheel.replace_layers(llama, "int8")
    assert type(llama.model.layers[0].mlp).__name__ == "LlamaMLP"
    report = cutwheel.replace_layers(linear)
    assert "nothing holds it" in report.left[0].reason


def test_import_registers_nothing() -> None:
    """Neither transformers nor its interfaces are touched by `import cutwheel`."""
    pytest.importorskip("transformers", reason="transformers is not installed")
    program = (
        "import sys, cutwheel; assert 'transformers' not in sys.modules;"
        "from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS as known;"
        "assert 'cutwheel' not in known.keys(); cutwheel.models.register_transformers();"
        "assert 'cutwheel' in known.keys()"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment, timeout=120)
