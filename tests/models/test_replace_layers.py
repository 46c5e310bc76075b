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


def test_gated_mlps_keep_their_layers(cutwheel: ModuleType, cpu_ops: CpuOps, llama: Any) -> None:
    block, given = llama.model.layers[0].mlp, cases.inputs("llama")
    before = dict(block.named_parameters())
    cutwheel.replace_layers(llama)
    assert all(block.get_parameter(name) is each for name, each in before.items())
    with torch.no_grad():
        want = cases.result(llama, given)
        # A layer that does more than its weight says is called.
        block.up_proj.register_forward_hook(lambda module, args, result: 2 * result)
        cpu_ops.calls.clear()
        found = cases.result(llama, given)
        assert cpu_ops.names("linear_fused") == ["gated_silu"]
        assert not torch.allclose(found, want)


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


# --- gated linear units


class GEGLU(torch.nn.Module):
    """As in diffusers."""

    def __init__(self, dim_in: int, dim_out: int, bias: bool = True) -> None:
        super().__init__()
        self.proj = torch.nn.Linear(dim_in, 2 * dim_out, bias)

    def gelu(self, gate: Tensor) -> Tensor:
        return torch.nn.functional.gelu(gate)

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        values, gate = self.proj(hidden_states).chunk(2, dim=-1)
        result: Tensor = values * self.gelu(gate)
        return result


class SwiGLU(torch.nn.Module):
    """As in diffusers."""

    def __init__(self, dim_in: int, dim_out: int, bias: bool = True) -> None:
        super().__init__()
        self.proj = torch.nn.Linear(dim_in, 2 * dim_out, bias)
        self.activation = torch.nn.SiLU()

    def forward(self, hidden_states: Tensor) -> Tensor:
        values, gate = self.proj(hidden_states).chunk(2, dim=-1)
        result: Tensor = values * self.activation(gate)
        return result


class GateFirst(GEGLU):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        gate, values = self.proj(x).chunk(2, dim=-1)
        result: Tensor = torch.nn.functional.gelu(gate, approximate="tanh") * values
        return result


class Clamped(GEGLU):
    def gelu(self, gate: Tensor) -> Tensor:
        return super().gelu(gate.clamp(max=7))


class Bilinear(GEGLU):
    def gelu(self, gate: Tensor) -> Tensor:
        return gate


class Normed(GEGLU):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        x = torch.nn.functional.layer_norm(x, x.shape[-1:])
        values, gate = self.proj(x).chunk(2, dim=-1)
        result: Tensor = values * self.gelu(gate)
        return result


class Dropping(GEGLU):
    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.dropout = torch.nn.Dropout()

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        result: Tensor = self.dropout(super().forward(x))
        return result


class Masked(GEGLU):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:  # type: ignore[override]
        result = super().forward(x)
        return result if mask is None else result * mask


GateFirst.__name__ = "GEGLU"
for _kind in (Clamped, Bilinear, Normed, Dropping, Masked):
    _kind.__name__ = "SwiGLU"


def feed_forward(unit: torch.nn.Module) -> torch.nn.Sequential:
    return torch.nn.Sequential(unit, torch.nn.Linear(24, 16)).eval()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("kind", "activation"), [(GEGLU, "gelu"), (SwiGLU, "silu"), (GateFirst, "gelu_tanh")]
)
def test_gated_linear_units(
    cutwheel: ModuleType, cpu_ops: CpuOps, kind: type[Any], activation: str, bias: bool
) -> None:
    model, x = feed_forward(kind(16, 24, bias)), torch.randn(2, 5, 16)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    parameters = list(model.parameters())
    want = model(x)
    grads = torch.autograd.grad(want.square().sum(), parameters)
    of_torch = dict(zip(state, grads, strict=True))
    report = cutwheel.replace_layers(model)
    epilogue = f"gated_bias_{activation}" if bias else f"gated_{activation}"
    unit = report.replaced[0]
    assert unit[:4] == ("0", kind.__name__, "gated_linear", ("proj",))
    assert isinstance(model[0], kind)
    cpu_ops.calls.clear()
    found = model(x)
    torch.testing.assert_close(found, want)
    assert cpu_ops.names("linear_fused_aux") == [f"{epilogue}_aux"]
    found.square().sum().backward()
    of_ours = cases.gradients_of(model)
    for name, grad in of_torch.items():
        torch.testing.assert_close(of_ours[name], grad, rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        for other in (copy.deepcopy(model), torch.load(file, weights_only=False)):
            assert torch.equal(other(x), found)
        assert cpu_ops.names("linear_fused") == [epilogue] * 2
        saved = model.state_dict()
        assert [*saved] == [*state]
        for name, value in state.items():
            assert torch.equal(saved[name], value), name
        for parameter in model.parameters():
            parameter.zero_()
        loaded = model.load_state_dict(state)
        assert (loaded.missing_keys, loaded.unexpected_keys) == ([], [])
        torch.testing.assert_close(model(x), want)
    assert cutwheel.replace_layers(model).replaced == ()


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (Clamped, "its forward is not the activation of a half"),
        (Bilinear, "its forward is not the activation of a half"),
        (Normed, "proj is called with another input than forward"),
        (Dropping, "it has more than proj and an activation"),
        (Masked, "its forward takes more than x"),
    ],
)
def test_units_that_do_other_things_stay(
    cutwheel: ModuleType, cpu_ops: CpuOps, kind: type[Any], reason: str
) -> None:
    model, x = feed_forward(kind(16, 24)), torch.randn(5, 16)
    with torch.no_grad():
        want = model(x)
        report = cutwheel.replace_layers(model)
        torch.testing.assert_close(model(x), want)
    assert reason in left(report, "0")
    assert isinstance(model[0].proj, cutwheel.nn.Linear)


class LlamaMLP(torch.nn.Module):
    """As in Transformers, with `mlp_bias`."""

    def __init__(self, gate_bias: bool, up_bias: bool) -> None:
        super().__init__()
        self.gate_proj = torch.nn.Linear(16, 24, gate_bias)
        self.up_proj = torch.nn.Linear(16, 24, up_bias)
        self.down_proj = torch.nn.Linear(24, 16, up_bias)
        self.act_fn = torch.nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))
        return result


LlamaMLP.__module__ = "transformers.models.llama.modeling_llama"


@pytest.mark.parametrize("quantize", [None, "fp8"])
@pytest.mark.parametrize(("gate_bias", "up_bias"), [(True, True), (False, True)])
def test_gated_mlps_with_biases(
    cutwheel: ModuleType, cpu_ops: CpuOps, quantize: str | None, gate_bias: bool, up_bias: bool
) -> None:
    model, x = torch.nn.Sequential(LlamaMLP(gate_bias, up_bias)), torch.randn(5, 16)
    with torch.no_grad():
        want, state = model(x), {k: v.clone() for k, v in model.state_dict().items()}
        report = cutwheel.replace_layers(model, quantize)
        found = model(x)
    if gate_bias:
        assert report.replaced[0].by == ("gated_linear" if quantize is None else "one ScaledLinear")
    else:
        assert left(report, "0").endswith("only one of gate and up has a bias")
    if quantize is None:
        torch.testing.assert_close(found, want)
        saved = model.state_dict()
        assert {*saved} == {*state}
        assert all(torch.equal(saved[name], value) for name, value in state.items())
    else:
        assert float((found - want).norm() / want.norm()) < 0.3


def test_units_with_hooks_stay(cutwheel: ModuleType, cpu_ops: CpuOps) -> None:
    model = feed_forward(GEGLU(16, 24))
    model[0].proj.register_forward_hook(lambda *_: None)
    assert "proj: it has hooks" in left(cutwheel.replace_layers(model), "0")


def test_quantised_units_keep_their_gate(cutwheel: ModuleType, cpu_ops: CpuOps) -> None:
    model = feed_forward(GEGLU(16, 24)).to(BRAIN)
    report = cutwheel.replace_layers(model, "fp8")
    assert {entry.name for entry in report.replaced} == {"0.proj", "1"}
    assert isinstance(model[0].proj, cutwheel.nn.ScaledLinear)


def test_units_on_meta_and_compiled(cutwheel: ModuleType, traced_on_cpu: CpuOps) -> None:
    model, x = feed_forward(SwiGLU(16, 24)), torch.randn(5, 16)
    with torch.no_grad():
        want, state = model(x), model.state_dict()
        made = copy.deepcopy(model).to("meta")
        assert cutwheel.replace_layers(made).left == ()
        made.load_state_dict(state, assign=True)
        compiled = torch.compile(made, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(x), want)


def test_units_in_fused_models(cutwheel: ModuleType, cpu_ops: CpuOps) -> None:
    """fuse leaves them whole, so that they are found behind it, too."""

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = GEGLU(16, 24), torch.nn.Linear(24, 16)

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = x + self.down(self.up(x))
            return result

    model, x = Block().eval(), torch.randn(5, 16)
    fused = cutwheel.fuse(model)
    assert [each.parts for each in fused.fusion_report.replaced] == [("linear", "bias", "residual")]
    report = cutwheel.replace_layers(fused)
    assert [(entry.name, entry.by) for entry in report.replaced] == [("up", "gated_linear")]
    with torch.no_grad():
        torch.testing.assert_close(fused(x), model(x))


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
