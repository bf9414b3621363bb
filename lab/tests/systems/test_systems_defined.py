"""What defines each of the other systems: penalties, smooth and unitary units, gates, factors."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from pathsgd_lab.systems import (
    GruSystem,
    LstmSystem,
    MrnnHfSystem,
    NormStabilizerSystem,
    RnnReluSystem,
    SmoothReluSystem,
    System,
    UrnnSystem,
)
from pathsgd_lab.systems.smooth_relu import smooth_relu
from pathsgd_lab.systems.urnn import UnitaryNet, mod_relu
from pathsgd_lab.tasks import AddingTask, PtbCharTask
from small_tasks import BATCH, random_batch


@given(
    steps=st.integers(1, 6),
    seed=st.integers(0, 100),
    beta=st.floats(0.0, 1000.0),
    carried=st.booleans(),
)
def test_norm_stabiliser_equals_its_formula(
    steps: int, seed: int, beta: float, carried: bool
) -> None:
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(steps, 2, 5, generator=generator, dtype=torch.float64)
    initial = torch.randn(2, 5, generator=generator, dtype=torch.float64) if carried else None
    expected = 0.0
    for b in range(2):
        previous = math.sqrt(sum(float(v) ** 2 for v in initial[b])) if initial is not None else 0.0
        for t in range(steps):
            norm = math.sqrt(sum(float(v) ** 2 for v in hidden[t, b]))
            expected += beta * (norm - previous) ** 2 / steps / 2
            previous = norm
    assert NormStabilizerSystem(beta=beta).penalty(hidden, initial).item() == pytest.approx(
        expected, rel=1e-9
    )


def test_norm_stabiliser_adds_its_penalty_to_the_objective_only() -> None:
    task = AddingTask(length=6)
    system = NormStabilizerSystem(hidden=8, others_range=0.5)
    model = system.build(task, seed=0)
    batch = random_batch(task)
    state = (torch.rand(BATCH, 8),)
    losses = system.losses(model, task, batch, state)
    outputs, _, hidden = model.forward_with_hidden(batch.inputs, state)
    assert losses.loss.item() == pytest.approx(task.loss(outputs, batch.targets).item())
    penalty = system.penalty(hidden, state[0])
    assert penalty > 0
    assert losses.objective.item() == pytest.approx((losses.loss + penalty).item())
    assert system.beta == 500.0


@given(x=st.floats(-50, 50), eps=st.floats(1e-8, 1e-2))
def test_smooth_relu_is_positive_and_near_the_rectifier(x: float, eps: float) -> None:
    value = smooth_relu(torch.tensor(x, dtype=torch.float64), eps).item()
    assert value > 0.0
    # The distance is largest at 0; beyond, rounding of x + sqrt(x^2 + eps) may add a little.
    assert max(0.0, x) <= value + 1e-12
    assert value - max(0.0, x) <= math.sqrt(eps) / 2 + 1e-12


def test_smooth_relu_with_no_bend_is_the_plain_net() -> None:
    task = AddingTask(length=7)
    smooth = SmoothReluSystem(hidden=9, eps=0.0, others_range=0.5).build(task, seed=0)
    plain = RnnReluSystem(hidden=9).build(task, seed=0)
    with torch.no_grad():
        plain.rnn.weight_ih_l0.copy_(smooth.input.weight)
        plain.rnn.weight_hh_l0.copy_(smooth.recurrent)
        plain.readout.load_state_dict(smooth.readout.state_dict())
    inputs = random_batch(task).inputs
    torch.testing.assert_close(smooth(inputs)[0], plain(inputs)[0])


# --- unitary net
# --------------------------------------------------------------------------------------------------


def unitary_error(model: nn.Module) -> float:
    """max |W W^* - I| of the matrix as it is used, in complex64."""
    assert isinstance(model, UnitaryNet)
    transition = model.transition().to(torch.complex64).to(torch.complex128)
    eye = torch.eye(len(transition), dtype=torch.complex128)
    return (transition @ transition.conj().t() - eye).abs().max().item()


def test_urnn_stays_unitary_while_it_learns() -> None:
    task = AddingTask(length=15)
    system = UrnnSystem(hidden=32)
    model = system.build(task, seed=0)
    stream = task.prepare().stream(16, seed=0)
    optimiser = torch.optim.RMSprop(model.parameters(), lr=1e-2)
    before = model.transition().detach().clone()
    for _ in range(60):
        losses = system.losses(model, task, stream.next(), None)
        optimiser.zero_grad()
        losses.objective.backward()
        optimiser.step()
        assert unitary_error(model) < 1e-6
    assert (model.transition() - before).abs().max() > 0.1, (
        "the matrix must have moved for this to mean anything"
    )


def test_urnn_multiplies_out_the_published_product() -> None:
    model = UrnnSystem(hidden=6).build(AddingTask(length=3), seed=2)
    assert isinstance(model, UnitaryNet)
    n = 6
    k = torch.arange(n, dtype=torch.float64)
    fourier = torch.exp(-2j * math.pi * torch.outer(k, k) / n) / math.sqrt(n)
    d = [torch.diag(torch.exp(1j * phase.double())) for phase in model.phases.detach()]
    reflections = []
    for v in torch.view_as_complex(model.reflections.detach().double()):
        reflections.append(torch.eye(n) - 2 * torch.outer(v, v.conj()) / (v.abs() ** 2).sum())
    shuffle = torch.eye(n, dtype=torch.complex128)[model.permutation]
    w = (
        d[2]
        @ reflections[1]
        @ fourier.conj().t()
        @ d[1]
        @ shuffle
        @ reflections[0]
        @ fourier
        @ d[0]
    )
    torch.testing.assert_close(model.transition().detach(), w.t(), atol=1e-12, rtol=0)


def test_mod_relu_keeps_the_phase_and_rectifies_the_modulus() -> None:
    z = torch.tensor([3 + 4j, 0.3 + 0.4j, 0j], dtype=torch.complex128, requires_grad=True)
    bias = torch.tensor([1.0, -1.0, -1.0], dtype=torch.float64)
    result = mod_relu(z, bias)
    torch.testing.assert_close(result, torch.tensor([3.6 + 4.8j, 0j, 0j], dtype=torch.complex128))
    result.abs().sum().backward()
    assert z.grad is not None and torch.view_as_real(z.grad).isfinite().all()


def test_urnn_without_input_and_bias_keeps_the_norm_of_its_state() -> None:
    task = AddingTask(length=200)
    model = UrnnSystem(hidden=24).build(task, seed=0)
    hidden = model.forward_with_hidden(torch.zeros(200, 1, 2))[2].detach()
    norms = hidden.norm(dim=-1)
    torch.testing.assert_close(norms, norms[:1].expand_as(norms), rtol=1e-4, atol=0)


# --- gated and multiplicative nets
# --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("system", "gates"), [(LstmSystem(hidden=20), 4), (GruSystem(hidden=20), 3)]
)
def test_every_gate_starts_with_an_orthogonal_recurrent_matrix(system: System, gates: int) -> None:
    net = system.build(PtbCharTask(), seed=0)
    blocks = net.rnn.weight_hh_l0.split(20)
    assert len(blocks) == gates
    for block in blocks:
        torch.testing.assert_close(block @ block.t(), torch.eye(20), atol=1e-5, rtol=0)
    assert 0.009 < net.rnn.weight_ih_l0.abs().max() <= 0.01
    assert 0.009 < net.readout.weight.abs().max() <= 0.01


def test_lstm_forget_gates_start_open() -> None:
    net = LstmSystem(hidden=5).build(AddingTask(), seed=0)
    bias = (net.rnn.bias_ih_l0 + net.rnn.bias_hh_l0).view(4, 5)
    assert torch.equal(bias, torch.tensor([0.0, 1.0, 0.0, 0.0]).unsqueeze(1).expand(4, 5))


def test_multiplicative_net_chooses_its_recurrent_matrix_by_the_input() -> None:
    task = PtbCharTask(window=4)
    net = MrnnHfSystem(hidden=10, factors=7).build(task, seed=0)
    inputs = random_batch(task).inputs
    h = torch.zeros(BATCH, 10)
    for x, found in zip(inputs, net(inputs)[0], strict=True):
        rows = []
        for b, symbol in enumerate(x):
            matrix = (
                net.recurrent @ torch.diag(net.input_factors.weight[symbol]) @ net.hidden_factors
            )
            rows.append(torch.tanh(matrix @ h[b] + net.input.weight[symbol] + net.bias))
        h = torch.stack(rows)
        torch.testing.assert_close(found, net.readout(h))


def test_multiplicative_net_starts_sparse() -> None:
    net = MrnnHfSystem(hidden=60).build(PtbCharTask(), seed=0)
    for weight in (net.recurrent, net.hidden_factors, net.readout.weight):
        assert ((weight != 0).sum(1) == 15).all()
