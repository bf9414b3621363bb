"""Each builder draws the network that torch computes, with torch's names and shapes."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from oracle import GraphBuilder, build, pack, unpack


def packed(layout, *modules_with_prefix):
    """p from torch modules; each parameter gets its module's prefix before its name."""
    values = {}
    for prefix, module in modules_with_prefix:
        values |= {
            prefix + name: value.detach().numpy() for name, value in module.named_parameters()
        }
    return pack(layout, values)


def assert_same_function_and_gradient(network, layout, modules, function, x):
    """network and function agree on x, and so do gradients of a fixed combination of outputs."""
    p = packed(layout, *modules)
    y = function(torch.as_tensor(x)).flatten()
    np.testing.assert_allclose(
        network.forward(p, np.ravel(x)), y.detach().numpy(), rtol=1e-12, atol=1e-13
    )
    direction = np.linspace(-1.0, 2.0, len(network.outputs))
    (torch.as_tensor(direction) @ y).backward()
    named = unpack(layout, network.gradient(p, np.ravel(x), direction))
    for prefix, module in modules:
        for name, parameter in module.named_parameters():
            np.testing.assert_allclose(
                named[prefix + name], parameter.grad.numpy(), rtol=1e-10, atol=1e-13
            )


@pytest.fixture(autouse=True)
def _double_precision():
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@pytest.mark.parametrize("bias", [True, False])
def test_mlp_is_a_torch_sequential(bias):
    widths = [3, 4, 2, 3]
    linears = [nn.Linear(a, b, bias=bias) for a, b in pairwise(widths)]
    model = nn.Sequential(linears[0], nn.ReLU(), linears[1], nn.ReLU(), linears[2])
    network, layout = build.mlp(widths, bias=bias)
    assert_same_function_and_gradient(
        network, layout, [("", model)], model, np.random.default_rng(0).normal(size=3)
    )


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("every_step", [True, False])
@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("layers", [1, 2])
def test_rnn_is_torch_rnn(layers, bidirectional, every_step, bias):
    core = nn.RNN(2, 3, layers, nonlinearity="relu", bias=bias, bidirectional=bidirectional)
    out = nn.Linear(6 if bidirectional else 3, 2, bias=bias)
    x = np.random.default_rng(1).normal(size=(4, 2))
    network, layout = build.rnn(2, [3] * layers, 2, 4, bias, every_step, bidirectional)

    def function(sequence):
        return out(core(sequence)[0] if every_step else core(sequence)[0][-1])

    assert_same_function_and_gradient(network, layout, [("", core), ("out.", out)], function, x)


def test_rnn_without_a_linear_layer_returns_its_states():
    core = nn.RNN(2, 2, nonlinearity="relu")
    x = np.random.default_rng(2).normal(size=(3, 2))
    network, layout = build.rnn(2, [2], None, steps=3, every_step=True)
    assert_same_function_and_gradient(
        network, layout, [("", core)], lambda sequence: core(sequence)[0], x
    )


@pytest.mark.parametrize(("padding", "stride"), [(0, 1), (1, 1), (2, 2)])
def test_conv1d_is_torch_conv1d_relu_linear(padding, stride):
    conv = nn.Conv1d(2, 3, 3, stride=stride, padding=padding)
    x = np.random.default_rng(3).normal(size=(2, 6))
    linear = nn.Linear(conv(torch.zeros(2, 6)).numel(), 2)
    network, layout = build.conv1d(2, 3, 3, length=6, padding=padding, stride=stride, outputs=2)

    def function(signal):
        return linear(conv(signal).relu().flatten())

    assert_same_function_and_gradient(
        network, layout, [("conv.", conv), ("linear.", linear)], function, x
    )


@pytest.mark.parametrize("relu_after", [True, False])
def test_residual_is_a_block_with_a_skip_connection(relu_after):
    stem, first, second, head = nn.Linear(3, 2), nn.Linear(2, 4), nn.Linear(4, 2), nn.Linear(2, 2)
    network, layout = build.residual(3, 2, 4, 2, relu_after=relu_after)
    modules = [
        ("stem.", stem),
        ("block0.first.", first),
        ("block0.second.", second),
        ("head.", head),
    ]

    def function(x):
        h = stem(x).relu()
        h = h + second(first(h).relu())
        return head(h.relu() if relu_after else h)

    assert_same_function_and_gradient(
        network, layout, modules, function, np.random.default_rng(4).normal(size=3)
    )


def test_chain_alternates_the_shared_weight_with_the_others():
    network, layout = build.chain(2)
    p = pack(layout, {"shared": 2.0, "others": [3.0, 5.0, 7.0]})
    assert network.forward(p, [1.0]) == pytest.approx([3 * 2 * 5 * 2 * 7])
    assert [network.describe(path) for path in network.paths()] == [
        "x -> h[0] -> h[1] -> h[2] -> h[3] -> y"
    ]


def test_unpack_undoes_pack():
    _, layout = build.rnn(2, [3], 1, steps=2)
    values = {
        name: np.random.default_rng(5).normal(size=index.shape) for name, index in layout.items()
    }
    for name, value in unpack(layout, pack(layout, values)).items():
        np.testing.assert_array_equal(value, values[name])


def test_pack_refuses_wrong_names_and_shapes():
    _, layout = build.mlp([1, 1], bias=False)
    with pytest.raises(ValueError, match=r"expected values for \['0.weight'\]"):
        pack(layout, {"weight": [[1.0]]})
    with pytest.raises(ValueError, match=r"0\.weight has shape"):
        pack(layout, {"0.weight": [1.0]})


def test_builders_refuse_what_they_cannot_draw():
    with pytest.raises(ValueError, match="input and an output width"):
        build.mlp([3])
    with pytest.raises(ValueError, match="a layer and a time step"):
        build.rnn(1, [2], 1, steps=0)
    with pytest.raises(ValueError, match="does not fit"):
        build.conv1d(1, 1, kernel=5, length=3)
    draw = GraphBuilder()
    weight = draw.parameter("w", 2, 3)
    with pytest.raises(ValueError, match="declared already"):
        draw.parameter("w", 1)
    with pytest.raises(ValueError, match="from 2 to 3 nodes cannot have shape"):
        draw.dense(draw.inputs("x", 2), draw.outputs("y", 3), weight)
