"""Where the fused path steps back.

Modes, transforms, export and scripting get torch's own operation and results.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, grad, jvp, vmap
from torch.nn.utils.rnn import pack_sequence
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

import pathsgd.nn
from pathsgd.nn import functional
from pathsgd.nn.layer import ReluLayer


@pytest.fixture
def calls_of_the_layer(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one whenever the fused layer is applied."""
    applied: list[int] = []
    original = ReluLayer.apply
    monkeypatch.setattr(
        ReluLayer, "apply", lambda *arguments: (applied.append(1), original(*arguments))[1]
    )
    return applied


class Recorder(TorchFunctionMode):
    def __init__(self) -> None:
        self.seen: list[Callable[..., Any]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


def pair(**options: Any) -> tuple[torch.nn.RNN, torch.nn.RNN]:
    theirs = torch.nn.RNN(2, 5, nonlinearity="relu", **options)
    ours = pathsgd.nn.RNN(2, 5, nonlinearity="relu", **options)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def test_plain_calls_are_fused(calls_of_the_layer: list[int]) -> None:
    pair(num_layers=2)[1](torch.rand(3, 4, 2))
    assert len(calls_of_the_layer) == 2


@pytest.mark.parametrize(
    "data", [torch.rand(3, 4, 2), pack_sequence([torch.rand(3, 2), torch.rand(2, 2)])]
)
def test_a_function_mode_sees_torchs_operation(data: Any, calls_of_the_layer: list[int]) -> None:
    theirs, ours = pair()
    with Recorder() as mode:
        output, _ = ours(data)
    assert torch._VF.rnn_relu in mode.seen and not calls_of_the_layer
    torch.testing.assert_close(output, theirs(data)[0])


def test_a_default_device_is_no_reason_to_step_back(calls_of_the_layer: list[int]) -> None:
    with torch.device("cpu"):
        pair()[1](torch.rand(3, 4, 2))
    assert calls_of_the_layer


def test_a_tensor_subclass_keeps_its_type(calls_of_the_layer: list[int]) -> None:
    class Tagged(Tensor):
        pass

    assert type(pair()[1](torch.rand(3, 4, 2).as_subclass(Tagged))[0]) is Tagged
    assert not calls_of_the_layer


@pytest.mark.parametrize("packed", [False, True])
def test_the_function_has_torchs_signature(packed: bool, calls_of_the_layer: list[int]) -> None:
    theirs, _ = pair(num_layers=2, bidirectional=True)
    weights, settings = list(theirs.parameters()), (True, 2, 0.5, False, True)
    if packed:
        data = pack_sequence([torch.rand(3, 2), torch.rand(2, 2)])
        arguments: tuple[Any, ...] = (
            data.data,
            data.batch_sizes,
            torch.rand(4, 2, 5),
            weights,
            *settings,
        )
    else:
        arguments = (torch.rand(2, 3, 2), torch.rand(4, 2, 5), weights, *settings, True)
    torch.testing.assert_close(functional.rnn_relu(*arguments), torch._VF.rnn_relu(*arguments))
    assert len(calls_of_the_layer) == 2
    with Recorder() as mode:
        functional.rnn_relu(*arguments)
    assert torch._VF.rnn_relu in mode.seen and len(calls_of_the_layer) == 2


@pytest.mark.parametrize("change", ["too few", "hx", "features"])
def test_the_function_raises_what_torch_raises(change: str) -> None:
    theirs, _ = pair()
    arguments = [
        torch.rand(3, 4, 2),
        torch.rand(1, 4, 5),
        list(theirs.parameters()),
        True,
        1,
        0.0,
        False,
        False,
        False,
    ]
    if change == "too few":
        arguments = arguments[:3]
    elif change == "hx":
        arguments[1] = torch.rand(1, 3, 5)
    else:
        arguments[0] = torch.rand(3, 4, 3)
    raised = []
    for function in (torch._VF.rnn_relu, functional.rnn_relu):
        with pytest.raises((RuntimeError, TypeError)) as caught:
            function(*arguments)
        raised.append((caught.type, str(caught.value)))
    assert raised[0] == raised[1]


def test_tanh_is_torchs(calls_of_the_layer: list[int]) -> None:
    theirs = torch.nn.RNN(2, 5)
    ours = pathsgd.nn.RNN(2, 5)
    ours.load_state_dict(theirs.state_dict())
    x = torch.rand(3, 4, 2)
    assert torch.equal(ours(x)[0], theirs(x)[0]) and not calls_of_the_layer


def test_other_types_and_devices_are_torchs(calls_of_the_layer: list[int]) -> None:
    theirs, ours = pair()
    x = torch.rand(3, 4, 2)
    assert torch.equal(ours.bfloat16()(x.bfloat16())[0], theirs.bfloat16()(x.bfloat16())[0])
    assert ours.to("meta")(x.to("meta").bfloat16())[0].is_meta
    assert not calls_of_the_layer


def test_autocast_is_torchs(calls_of_the_layer: list[int]) -> None:
    theirs, ours = pair()
    x = torch.rand(3, 4, 2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(ours(x)[0], theirs(x)[0])
    assert not calls_of_the_layer


def test_a_negated_view_is_read_with_its_sign() -> None:
    theirs, ours = pair()
    x = torch.complex(torch.rand(3, 4, 2), torch.rand(3, 4, 2)).conj().imag
    assert x.is_neg()
    torch.testing.assert_close(ours(x)[0], theirs(x)[0])


def test_transforms_of_torch_func(calls_of_the_layer: list[int]) -> None:
    theirs, ours = pair()
    x, tangent = torch.rand(3, 4, 2), torch.rand(3, 4, 2)

    def loss(module: torch.nn.RNN) -> Any:
        return lambda weights: functional_call(module, weights, x)[0].square().sum()

    found = []
    for module in (ours, theirs):
        weights = {name: weight.detach() for name, weight in module.named_parameters()}
        found.append(
            [
                *jvp(lambda x: module(x)[0], (x,), (tangent,)),  # noqa: B023
                *grad(loss(module))(weights).values(),
            ]
        )
    torch.testing.assert_close(*found)
    assert not calls_of_the_layer


def test_vmap_is_refused_as_torch_refuses_it() -> None:
    for module in pair():
        with pytest.raises(RuntimeError, match="Batching rule not implemented for aten::rnn_relu"):
            vmap(lambda x, module=module: module(x)[0])(torch.rand(6, 3, 4, 2))


def test_functional_call_uses_the_given_weights(calls_of_the_layer: list[int]) -> None:
    theirs, ours = pair()
    weights = {name: torch.rand_like(weight) for name, weight in ours.named_parameters()}
    x = torch.rand(3, 4, 2)
    torch.testing.assert_close(
        functional_call(ours, weights, x), functional_call(theirs, weights, x)
    )
    assert calls_of_the_layer


def test_parametrised_weights(calls_of_the_layer: list[int]) -> None:
    theirs, ours = pair()
    for module in (theirs, ours):
        torch.nn.utils.parametrize.register_parametrization(
            module, "weight_hh_l0", torch.nn.Softplus()
        )
    x = torch.rand(3, 4, 2)
    torch.testing.assert_close(ours(x), theirs(x))
    assert calls_of_the_layer


def test_forward_mode_differentiation() -> None:
    theirs, ours = pair()
    x, tangent = torch.rand(3, 4, 2), torch.rand(3, 4, 2)
    found = []
    for module in (ours, theirs):
        with torch.autograd.forward_ad.dual_level():
            output, _ = module(torch.autograd.forward_ad.make_dual(x, tangent))
            found.append(torch.autograd.forward_ad.unpack_dual(output).tangent)
    torch.testing.assert_close(*found)


def test_a_dispatch_mode_counts_the_operations() -> None:
    counts = []
    for module in pair():
        with FlopCounterMode(display=False) as counter:
            module(torch.rand(3, 4, 2))
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] > 0


class Classifier(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = pathsgd.nn.RNN(2, 5, nonlinearity="relu", batch_first=True)
        self.out = torch.nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.rnn(x)[1][0])


def test_scripting_tracing_export_and_compilation(tmp_path: Any) -> None:
    model, x = Classifier().eval(), torch.rand(4, 3, 2)
    expected = model(x)
    scripted = torch.jit.script(model)
    scripted.save(tmp_path / "model.pt")
    ways = {
        "script": torch.jit.load(tmp_path / "model.pt"),
        "trace": torch.jit.trace(model, (x,)),
        "export": torch.export.export(model, (x,)).module(),
        "compile": torch.compile(model, backend="eager"),
    }
    for way, module in ways.items():
        torch.testing.assert_close(module(x), expected, msg=way)
    assert dict(scripted.named_parameters())["rnn.weight_hh_l0"] is not None


def test_onnx_export(tmp_path: Any) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="a package of the extra `lab`")

    model, x = Classifier().eval(), torch.rand(4, 3, 2)
    torch.onnx.export(model, (x,), tmp_path / "model.onnx", dynamo=True, verbose=False)
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    (result,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    torch.testing.assert_close(torch.from_numpy(result), model(x))
