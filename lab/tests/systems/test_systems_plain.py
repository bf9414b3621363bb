"""Plain nets: their initial values, how symbols enter, and that path rules can read them."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import pathsgd
from pathsgd_lab.systems import (
    SYSTEMS,
    IrnnSystem,
    NpRnnSystem,
    RnnPathSystem,
    RnnReluSystem,
    RnnTanhSystem,
)
from pathsgd_lab.systems.plain import PlainSystem, RecurrentNet
from pathsgd_lab.tasks import (
    AddingTask,
    PtbCharTask,
    PtbWordTask,
    SequentialMnistTask,
    Task,
    Text8Task,
)
from small_tasks import BATCH, TASKS, random_batch


def test_initial_values_of_the_paper() -> None:
    adding = RnnPathSystem().build(AddingTask(), seed=0)
    assert torch.equal(adding.rnn.weight_hh_l0, torch.eye(100))
    for weight in (adding.input_matrix, adding.readout.weight):
        assert 0.009 < weight.abs().max() <= 0.01
    assert not adding.rnn.bias_ih_l0.any() and not adding.readout.bias.any()

    text = RnnReluSystem(hidden=300).build(PtbCharTask(), seed=0)
    assert 0.0099 < text.rnn.weight_hh_l0.abs().max() <= 0.01
    assert (
        0.19 < text.input_matrix.abs().max() <= 0.2
        and 0.19 < text.readout.weight.abs().max() <= 0.2
    )

    assert (PtbCharTask.paper.hidden, PtbCharTask.paper.gated_hidden) == (2048, 1024)
    assert (Text8Task.paper.hidden, Text8Task.paper.gated_hidden) == (2048, 1024)

    words = RnnPathSystem().build(PtbWordTask(), seed=0)
    assert words.rnn.hidden_size == 200
    for weight in (words.input_matrix, words.rnn.weight_hh_l0, words.readout.weight):
        assert 0.0999 < weight.abs().max() <= 0.1


def test_settings_change_the_initial_values() -> None:
    task = AddingTask()
    net = RnnPathSystem(hidden=30, gain=0.5, others_range=0.3, mean_bias=True).build(task, seed=0)
    assert torch.equal(net.rnn.weight_hh_l0, 0.5 * torch.eye(30))
    assert 0.25 < net.input_matrix.abs().max() <= 0.3
    assert net.readout.bias.item() == 1.0
    orthogonal = (
        RnnTanhSystem(hidden=30, recurrent="orthogonal").build(task, seed=0).rnn.weight_hh_l0
    )
    torch.testing.assert_close(orthogonal @ orthogonal.t(), torch.eye(30), atol=1e-5, rtol=0)
    uniform = (
        IrnnSystem(hidden=30, recurrent="uniform", recurrent_range=0.7)
        .build(task, seed=0)
        .rnn.weight_hh_l0
    )
    assert 0.69 < uniform.abs().max() <= 0.7


def test_irnn_starts_from_the_identity_on_text_too() -> None:
    net = IrnnSystem(hidden=60).build(PtbCharTask(), seed=0)
    assert torch.equal(net.rnn.weight_hh_l0, torch.eye(60))
    assert net.readout.weight.abs().max() <= 0.01


@pytest.mark.parametrize("hidden", [8, 40])
def test_symbols_enter_as_one_hot_vectors(hidden: int) -> None:
    """Fewer symbols than units or more: the same net, h_t = relu(W_in[:, x_t] + b + W_rec h)."""
    task = PtbWordTask(window=4, vocabulary=20)
    net = RnnReluSystem(hidden=hidden, others_range=0.5, recurrent_range=0.3).build(task, seed=0)
    assert isinstance(net, RecurrentNet)
    with torch.no_grad():
        net.rnn.bias_ih_l0.uniform_(-0.1, 0.1)
    inputs = random_batch(task).inputs
    by_symbol = net.input_matrix if net.input_matrix.shape == (20, hidden) else net.input_matrix.t()
    h = torch.zeros(BATCH, hidden)
    for x, found in zip(inputs, net(inputs)[0], strict=True):
        h = torch.relu(by_symbol[x] + net.rnn.bias_ih_l0 + h @ net.rnn.weight_hh_l0.t())
        torch.testing.assert_close(found, net.readout(h))
    trained = sum(p.numel() for p in net.parameters() if p.requires_grad)
    assert trained == hidden * 20 + hidden * hidden + 2 * hidden + 20 * hidden + 20


PLAIN_RELU = [
    name
    for name, system in SYSTEMS.items()
    if system.path_rules and issubclass(system, PlainSystem)
]


@pytest.mark.parametrize(
    "task", [TASKS["adding"], TASKS["ptb_char"], TASKS["ptb_word"]], ids=lambda task: task.name
)
@pytest.mark.parametrize("system", PLAIN_RELU)
def test_path_rules_read_the_net(system: str, task: Task) -> None:
    """gamma^2 is that of h_t = W_in'^2 1 + b^2 + W_rec^2 h_{t-1}, every symbol an input."""
    net = SYSTEMS[system](hidden=60).build(task, seed=0)
    with torch.no_grad():
        for bias in (net.rnn.bias_ih_l0, net.rnn.bias_hh_l0, net.readout.bias):
            bias.uniform_(-0.1, 0.1)
    by_symbol = task.tokens and task.input_size > 60
    squared_in = net.input_matrix.double().square().sum(0 if by_symbol else 1)
    squared_in = (
        squared_in + net.rnn.bias_ih_l0.double().square() + net.rnn.bias_hh_l0.double().square()
    )
    h = torch.zeros(60, dtype=torch.float64)
    outputs = []
    for _ in range(task.length):
        h = squared_in + net.rnn.weight_hh_l0.double().square() @ h
        outputs.append(
            (net.readout.weight.double().square() @ h + net.readout.bias.double().square()).sum()
        )
    expected = torch.stack(outputs).sum() if task.every_step else outputs[-1]
    found = pathsgd.gamma_sq(net, task.example_inputs(2))
    assert found.item() == pytest.approx(expected.item(), rel=1e-9)


@given(size=st.integers(2, 40), seed=st.integers(0, 100))
@settings(max_examples=25)
def test_np_rnn_has_one_eigenvalue_one_and_the_others_between_zero_and_one(
    size: int, seed: int
) -> None:
    weight = NpRnnSystem(hidden=size).build(AddingTask(), seed).rnn.weight_hh_l0.detach().double()
    assert torch.equal(weight, weight.t())
    eigenvalues = torch.linalg.eigvalsh(weight)
    assert eigenvalues[-1].item() == pytest.approx(1.0, abs=1e-6)
    assert (eigenvalues[:-1] >= 0).all() and (eigenvalues[:-1] < 1 - 1e-9).all()


def test_np_rnn_input_weights_have_the_published_scale() -> None:
    net = NpRnnSystem(hidden=100).build(SequentialMnistTask(), seed=0)
    stacked = torch.cat(
        [NpRnnSystem(hidden=100).build(SequentialMnistTask(), s).input_matrix for s in range(30)]
    )
    expected = math.sqrt(2.0) * math.exp(1.2 / 97.6) / 100
    assert stacked.std().item() == pytest.approx(expected, rel=0.05)
    assert not net.rnn.bias_ih_l0.any()
