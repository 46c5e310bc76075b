"""GatedMLP, as three linear layers and packed: state dicts in both directions, what it computes."""

from __future__ import annotations

import copy
import io
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from cpu_reference import CpuOps

HIDDEN, INTERMEDIATE = 6, 10
KEYS = ["gate_proj.weight", "up_proj.weight", "down_proj.weight"]


ACTIVATIONS: dict[str, Any] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda z: F.gelu(z, approximate="tanh"),
    "silu": F.silu,
}


class TorchMLP(torch.nn.Module):
    """torch's equivalent of GatedMLP, as model code writes it."""

    activation: Any = staticmethod(F.silu)

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.gate_proj = torch.nn.Linear(HIDDEN, INTERMEDIATE, bias=False, **options)
        self.up_proj = torch.nn.Linear(HIDDEN, INTERMEDIATE, bias=False, **options)
        self.down_proj = torch.nn.Linear(INTERMEDIATE, HIDDEN, bias=False, **options)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.down_proj(self.activation(self.gate_proj(x)) * self.up_proj(x))
        return result


PACKED_KEYS = ["gate_up_weight", "down_proj.weight"]
each_form = pytest.mark.parametrize("packed", [False, True], ids=["separate", "packed"])


def mlp(cutwheel: ModuleType, packed: bool = False, **options: Any) -> Any:
    made = cutwheel.nn.GatedMLP(HIDDEN, INTERMEDIATE, **options)
    return made.pack_parameters() if packed else made


def weights_of(cutwheel: ModuleType, module: Any) -> dict[str, torch.Tensor]:
    """The state dict, by torch's names."""
    state = module.state_dict()
    packed = state.pop("gate_up_weight", None)
    if packed is not None:
        parts = cutwheel.unpack_gated_weight(packed)
        return dict(zip(KEYS, (*parts, state["down_proj.weight"]), strict=True))
    return dict(state)


def assert_same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> None:
    assert list(left) == list(right)
    for key, value in left.items():
        torch.testing.assert_close(value, right[key], rtol=0, atol=0)


def test_gated_mlp_is_readable(cutwheel: ModuleType) -> None:
    assert "GatedMLP" in repr(mlp(cutwheel))
    assert "hidden_size=6, intermediate_size=10, activation='silu'" in repr(mlp(cutwheel))
    with pytest.raises(ValueError, match="GatedMLP: activation is 'tanh'; expected one of relu"):
        mlp(cutwheel, activation="tanh")


@each_form
@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "silu"])
def test_gated_mlp_computes(
    cutwheel: ModuleType, cpu_ops: CpuOps, packed: bool, activation: str
) -> None:
    theirs = TorchMLP(dtype=torch.float64)
    theirs.activation = ACTIVATIONS[activation]
    ours = mlp(cutwheel, packed, dtype=torch.float64, activation=activation)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 3, HIDDEN, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(ours(x), theirs(x))
    torch.testing.assert_close(ours(x, x), theirs(x) + x)
    ours(x).sum().backward()
    theirs(x).sum().backward()
    grads = [parameter.grad for parameter in ours.parameters()]
    if packed:
        grads = [*cutwheel.unpack_gated_weight(grads[0]), grads[1]]
    for got, want in zip(grads, theirs.parameters(), strict=True):
        torch.testing.assert_close(got, want.grad)


def test_what_a_gated_mlp_runs(cutwheel: ModuleType, cpu_ops: CpuOps) -> None:
    ours, x = mlp(cutwheel), torch.randn(3, HIDDEN)
    with torch.no_grad():
        ours(x)
        separate = list(cpu_ops.calls)
        cpu_ops.calls.clear()
        ours.pack_parameters()(x)
        assert cpu_ops.calls == separate
        assert [call[0] for call in separate] == ["linear_fused", "linear"]
        assert separate[0][1] == "gated_silu"
        # A layer that does more than its weight says is called.
        cpu_ops.calls.clear()
        hooked = mlp(cutwheel)
        hooked.up_proj.register_forward_hook(lambda module, args, result: 2 * result)
        hooked(x)
    assert [call[0] for call in cpu_ops.calls] == ["linear_fused", "linear", "linear"]
    assert cpu_ops.calls[0][1] == "bias_silu"


def test_weights_of_another_class_are_left_to_their_layers(
    cutwheel: ModuleType, cpu_ops: CpuOps
) -> None:
    """A quantised tensor, for example, is more than its elements."""

    class Quantised(torch.Tensor):
        pass

    ours, x = mlp(cutwheel), torch.randn(3, HIDDEN)
    weight = ours.up_proj.weight.detach().as_subclass(Quantised)
    ours.up_proj.weight = torch.nn.Parameter(weight, requires_grad=False)
    with torch.no_grad():
        ours(x)
    assert cpu_ops.calls[0][1] == "bias_silu"


def test_gated_mlp_is_initialised_as_three_linear_layers(cutwheel: ModuleType) -> None:
    torch.manual_seed(1)
    ours = mlp(cutwheel)
    torch.manual_seed(1)
    theirs = TorchMLP()
    assert_same(ours.state_dict(), theirs.state_dict())
    torch.manual_seed(2)
    ours.reset_parameters()
    torch.manual_seed(2)
    for layer in (theirs.gate_proj, theirs.up_proj, theirs.down_proj):
        layer.reset_parameters()
    assert_same(ours.state_dict(), theirs.state_dict())
    ours.pack_parameters()
    torch.nn.init.constant_(ours.gate_up_weight, 7)
    ours.reset_parameters()
    for name, weight in weights_of(cutwheel, ours).items():
        bound = weight.shape[1] ** -0.5
        assert bound / 2 < weight.abs().max() <= bound, name


@each_form
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("assign", [False, True])
def test_state_dicts_go_both_ways(
    cutwheel: ModuleType, packed: bool, nested: bool, assign: bool
) -> None:
    ours, theirs, prefix = mlp(cutwheel, packed), TorchMLP(), ""
    inner = ours
    if nested:
        prefix = "1."
        ours = torch.nn.Sequential(torch.nn.LayerNorm(HIDDEN), ours)
        theirs = torch.nn.Sequential(torch.nn.LayerNorm(HIDDEN), theirs)  # type: ignore[assignment]
    own = [f"{prefix}{key}" for key in (PACKED_KEYS if packed else KEYS)]
    assert [key for key in ours.state_dict() if key[:2] != "0."] == own
    assert list(ours.state_dict()) == [name for name, _ in ours.named_parameters()]
    given = theirs.state_dict()
    keys = list(given)
    for strict in (True, False):
        done = ours.load_state_dict(given, strict=strict, assign=assign)
        assert (done.missing_keys, done.unexpected_keys) == ([], [])
    assert list(given) == keys, "what was given is left as it was"
    expected = {key[len(prefix) :]: value for key, value in given.items() if key[:2] != "0."}
    assert_same(weights_of(cutwheel, inner), expected)
    assert all(parameter.is_contiguous() for parameter in ours.parameters())
    # The other form, and back into torch's.
    other = mlp(cutwheel, not packed)
    if nested:
        other = torch.nn.Sequential(torch.nn.LayerNorm(HIDDEN), other)
    done = other.load_state_dict(ours.state_dict(), assign=assign)
    assert (done.missing_keys, done.unexpected_keys) == ([], [])
    assert_same(weights_of(cutwheel, other[1] if nested else other), expected)
    assert all(parameter.is_contiguous() for parameter in other.parameters())
    separate = other if packed else ours
    with torch.no_grad():
        separate.get_parameter(f"{prefix}up_proj.weight").mul_(2)
    theirs.load_state_dict(separate.state_dict(), assign=assign)
    assert_same(theirs.state_dict(), separate.state_dict())


def test_packing_parameters(cutwheel: ModuleType, cpu_ops: CpuOps) -> None:
    ours = mlp(cutwheel, dtype=torch.float64).eval()
    x = torch.randn(3, HIDDEN, dtype=torch.float64)
    before, expected = copy.deepcopy(ours.state_dict()), ours(x)
    assert ours.pack_parameters() is ours.pack_parameters()
    assert (ours.gate_proj, ours.up_proj) == (None, None)
    assert list(ours.state_dict()) == PACKED_KEYS
    torch.testing.assert_close(ours(x), expected)
    assert ours.unpack_parameters() is ours.unpack_parameters()
    assert ours.gate_up_weight is None
    assert_same(ours.state_dict(), before)
    assert not ours.gate_proj.training
    torch.testing.assert_close(ours(x), expected)
    frozen = mlp(cutwheel, device="meta", dtype=torch.half).requires_grad_(False)
    assert not frozen.pack_parameters().gate_up_weight.requires_grad
    assert (frozen.gate_up_weight.is_meta, frozen.gate_up_weight.dtype) == (True, torch.half)
    assert not frozen.unpack_parameters().up_proj.weight.requires_grad


class Adapter(torch.nn.Module):
    """A low-rank one, as is put in the place of a layer."""

    def __init__(self, layer: torch.nn.Linear) -> None:
        super().__init__()
        self.layer = layer
        self.low = torch.nn.Parameter(torch.randn(2, layer.in_features))
        self.high = torch.nn.Parameter(torch.randn(layer.out_features, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layer(x) + x @ self.low.T @ self.high.T
        return result


class LowRank(torch.nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + 1


def hooked(layer: torch.nn.Module) -> torch.nn.Module:
    layer.register_forward_hook(lambda module, args, result: result + 1)
    return layer


def replaced(layer: Any) -> torch.nn.Module:
    layer.forward = lambda x: F.linear(x, layer.weight) + 1
    return layer  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", KEYS)
@pytest.mark.parametrize(
    "change",
    [Adapter, hooked, replaced, lambda layer: torch.nn.Linear(*layer.weight.shape[::-1])],
    ids=["adapter", "hook", "forward", "bias"],
)
def test_what_is_put_in_place_of_a_layer_is_called(
    cutwheel: ModuleType, cpu_ops: CpuOps, name: str, change: Any
) -> None:
    """Results and gradients are those of torch's layers with the same thing in their place."""
    name = name.removesuffix(".weight")
    ours, theirs = mlp(cutwheel), TorchMLP()
    theirs.load_state_dict(ours.state_dict())
    for module in (ours, theirs):
        torch.manual_seed(3)
        setattr(module, name, change(getattr(module, name)))
    x = torch.randn(5, HIDDEN)
    torch.testing.assert_close(ours(x), theirs(x))
    ours(x).sum().backward()
    theirs(x).sum().backward()
    for got, want in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(got.grad, want.grad)
    if name != "down_proj":
        message = f"GatedMLP: {name} (is of type Adapter|has hooks|has a forward set|has bias)"
        with pytest.raises((TypeError, ValueError), match=message):
            ours.pack_parameters()
        assert list(ours.state_dict()) == list(theirs.state_dict())


def test_what_cannot_be_packed(cutwheel: ModuleType) -> None:
    ours = mlp(cutwheel)
    ours.gate_proj.weight.requires_grad_(False)
    with pytest.raises(ValueError, match=r"gate_proj\.weight\.requires_grad is False and that of"):
        ours.pack_parameters()
    ours = mlp(cutwheel)
    ours.up_proj = LowRank(HIDDEN, INTERMEDIATE, bias=False)
    with pytest.raises(TypeError, match="up_proj is a LowRank, whose forward is not that of torch"):
        ours.pack_parameters()
    ours.up_proj = cutwheel.nn.Linear(HIDDEN, INTERMEDIATE, False, activation="relu")
    with pytest.raises(ValueError, match="up_proj has activation 'relu'; expected none"):
        ours.pack_parameters()
    ours.up_proj = torch.nn.utils.parametrizations.weight_norm(
        torch.nn.Linear(HIDDEN, INTERMEDIATE, False)
    )
    with pytest.raises(TypeError, match=r"up_proj\.weight is of type Tensor; expected a torch\.nn"):
        ours.pack_parameters()
    ours.up_proj = torch.nn.Linear(HIDDEN, INTERMEDIATE, False)
    assert ours.pack_parameters().gate_up_weight.shape == (2 * INTERMEDIATE, HIDDEN)


@each_form
def test_wrong_state_dicts_are_refused(cutwheel: ModuleType, packed: bool) -> None:
    ours, state = mlp(cutwheel, packed), TorchMLP().state_dict()
    before = copy.deepcopy(weights_of(cutwheel, ours))
    missing = {key: value for key, value in state.items() if key != KEYS[1]}
    with pytest.raises(RuntimeError, match=r'Missing key.*"up_proj\.weight"') as raised:
        ours.load_state_dict(missing)
    assert "gate_up_weight" not in str(raised.value)
    wanted = "gate_up_weight" if packed else r"gate_proj\.weight.*up_proj\.weight"
    with pytest.raises(RuntimeError, match=rf"Missing key.*{wanted}"):
        ours.load_state_dict({})
    ours.load_state_dict(before)
    done = ours.load_state_dict({KEYS[0]: state[KEYS[0]]}, strict=False)
    assert done.unexpected_keys == []
    after = weights_of(cutwheel, ours)
    torch.testing.assert_close(after[KEYS[0]], state[KEYS[0]])
    torch.testing.assert_close(after[KEYS[1]], before[KEYS[1]])
    wide = cutwheel.pack_gated_weight(state[KEYS[0]], state[KEYS[1]])
    for wrong, message in (
        ({"extra.weight": wide}, r"Unexpected key.*extra\.weight"),
        ({"gate_up_weight": wide}, r"Unexpected key"),  # twice
        ({KEYS[1]: torch.zeros(3, HIDDEN)}, r"size mismatch for up_proj.weight.*\[3, 6\]"),
        ({KEYS[1]: 3}, "up_proj.weight"),
    ):
        with pytest.raises(RuntimeError, match=message):
            ours.load_state_dict({**state, **wrong})
    rest = {KEYS[2]: state[KEYS[2]]}
    for shape in ((3, HIDDEN), (4, HIDDEN)):
        with pytest.raises(RuntimeError, match=r"weight has shape|size mismatch for"):
            ours.load_state_dict({**rest, "gate_up_weight": torch.zeros(shape)})
    if packed:
        with pytest.raises(RuntimeError, match=r"up has dtype torch\.float16"):
            ours.load_state_dict({**state, KEYS[1]: state[KEYS[1]].half()})


@each_form
def test_meta_device_and_checkpoints(cutwheel: ModuleType, packed: bool) -> None:
    with torch.device("meta"):
        ours = mlp(cutwheel, packed)
    assert all(parameter.is_meta for parameter in ours.parameters())
    state = TorchMLP(dtype=torch.bfloat16).state_dict()
    ours.load_state_dict(state, assign=True)
    for parameter in ours.parameters():
        assert parameter.dtype == torch.bfloat16
        assert isinstance(parameter, torch.nn.Parameter)
        assert parameter.requires_grad
    assert_same(weights_of(cutwheel, ours), state)
    with torch.device("meta"):
        empty = mlp(cutwheel, packed)
    empty = empty.to_empty(device="cpu")
    for parameter in empty.parameters():
        torch.nn.init.constant_(parameter, 7)
    empty.reset_parameters()
    for weight in weights_of(cutwheel, empty).values():
        assert weight.abs().max() <= weight.shape[1] ** -0.5
    file = io.BytesIO()
    torch.save(ours.state_dict(), file)
    file.seek(0)
    assert_same(torch.load(file), ours.state_dict())


@each_form
def test_copies_are_independent(cutwheel: ModuleType, packed: bool) -> None:
    ours = mlp(cutwheel, packed)
    file = io.BytesIO()
    torch.save(ours, file)
    file.seek(0)
    copies = copy.deepcopy(ours), torch.load(file, weights_only=False)
    before = copy.deepcopy(ours.state_dict())
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.zero_()
    for copied in copies:
        assert_same(copied.state_dict(), before)
        copied.load_state_dict(ours.state_dict())
        assert_same(copied.state_dict(), ours.state_dict())


@each_form
def test_calls_follow_the_parameters(cutwheel: ModuleType, cpu_ops: CpuOps, packed: bool) -> None:
    """However they are changed: nothing that was made of them is kept."""
    ours, theirs, x = mlp(cutwheel, packed), TorchMLP(), torch.randn(3, HIDDEN)
    with torch.no_grad():
        for _ in range(2):
            ours(x)
            for parameter in theirs.parameters():
                parameter.normal_()
            parts = list(theirs.parameters())
            if packed:
                parts = [cutwheel.pack_gated_weight(*parts[:2]), parts[2]]  # type: ignore[list-item]
            for mine, new in zip(ours.parameters(), parts, strict=True):
                version, address = mine._version, mine.data_ptr()
                mine.data.copy_(new)
                assert (mine._version, mine.data_ptr()) == (version, address)
            torch.testing.assert_close(ours(x), theirs(x))
    with torch.inference_mode():
        for parameter in ours.parameters():
            parameter.zero_()
        assert not ours(x).any()


@each_form
def test_gated_mlp_compiles(cutwheel: ModuleType, traced_on_cpu: CpuOps, packed: bool) -> None:
    ours = mlp(cutwheel, packed)
    compiled = torch.compile(ours, backend="aot_eager", fullgraph=True)
    for rows in (3, 5):
        grads = []
        for call in (ours, compiled):
            torch.manual_seed(rows)
            x = torch.randn(rows, HIDDEN, requires_grad=True)
            y = call(x, x)
            y.square().sum().backward()
            grads.append([y, x.grad, *(parameter.grad for parameter in ours.parameters())])
            ours.zero_grad()
            with torch.no_grad():
                torch.testing.assert_close(call(x), ours(x))
        torch.testing.assert_close(*grads)
