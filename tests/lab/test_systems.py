"""Every system on every kind of task, and what defines each of them."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import pathsgd
from pathsgd.lab.systems import (
    SYSTEMS,
    GruSystem,
    IrnnSystem,
    LstmSystem,
    MrnnHfSystem,
    NormStabilizerSystem,
    NpRnnSystem,
    RnnPathSystem,
    RnnReluSystem,
    RnnTanhSystem,
    SmoothReluSystem,
    System,
    UrnnSystem,
)
from pathsgd.lab.systems.plain import RecurrentNet
from pathsgd.lab.systems.smooth_relu import smooth_relu
from pathsgd.lab.systems.urnn import UnitaryNet, mod_relu
from pathsgd.lab.tasks import (
    AddingTask,
    Batch,
    CopyTask,
    PtbCharTask,
    PtbWordTask,
    SequentialMnistTask,
    Task,
    Text8Task,
    detach_state,
)

# Every shape a task can have: numbers or symbols in, last step or every step out, few or many symbols.
TASKS: dict[str, Task] = {
    "adding": AddingTask(length=9),
    "smnist": SequentialMnistTask(subsample=7),
    "copy": CopyTask(lag=2),
    "ptb_char": PtbCharTask(window=6),
    "text8": Text8Task(window=6),
    "ptb_word": PtbWordTask(window=5, vocabulary=300),
}
BATCH = 3


def random_batch(task: Task, seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    steps = (task.length, BATCH) if task.every_step else (BATCH,)
    if task.tokens:
        inputs = torch.randint(task.input_size, (task.length, BATCH), generator=generator)
    else:
        inputs = torch.rand(task.length, BATCH, task.input_size, generator=generator)
    if task.metric == "mse":
        targets = torch.rand(*steps, task.output_size, generator=generator)
    else:
        targets = torch.randint(task.output_size, steps, generator=generator)
    return Batch(inputs, targets, carry=False)


def build(system: str, task: Task, hidden: int = 12) -> tuple[System, nn.Module]:
    settings_ = SYSTEMS[system](hidden=hidden)
    return settings_, settings_.build(task, seed=1)


def test_every_system_is_listed_under_its_own_name() -> None:
    assert {name: system.name for name, system in SYSTEMS.items()} == {name: name for name in SYSTEMS}
    assert len({system.title for system in SYSTEMS.values()}) == len(SYSTEMS) == 11


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
@pytest.mark.parametrize("system", SYSTEMS)
def test_shapes_loss_and_gradients(system: str, task: Task) -> None:
    settings_, model = build(system, task)
    batch = random_batch(task)
    outputs, state = model(batch.inputs)
    steps = (task.length, BATCH) if task.every_step else (BATCH,)
    assert outputs.shape == (*steps, task.output_size)
    assert all(part.shape[0] == BATCH and part.is_floating_point() for part in state)
    losses = settings_.losses(model, task, batch, None)
    assert losses.loss.isfinite() and losses.objective >= losses.loss
    losses.objective.backward()
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None and parameter.grad.isfinite().all(), name
            # U[-0.01, 0.01] nets have gradients too small to be told from zero only where they are zero.
            assert parameter.grad.any() or "bias_hh" in name, name


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_carried_state_continues_the_sequence(system: str) -> None:
    task = CopyTask(lag=10)
    _, model = build(system, task)
    inputs = random_batch(task).inputs
    whole, final = model(inputs)
    first, state = model(inputs[:11])
    second, continued = model(inputs[11:], detach_state(state))
    torch.testing.assert_close(torch.cat([first, second]), whole, rtol=1e-5, atol=1e-6)
    for a, b in zip(final, continued, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    _, _, hidden = model.forward_with_hidden(inputs)
    torch.testing.assert_close(hidden[-1], final[0])


@pytest.mark.parametrize("system", SYSTEMS)
def test_the_seed_alone_decides_the_parameters(system: str) -> None:
    task = AddingTask(length=5)
    settings_ = SYSTEMS[system](hidden=7)
    torch.manual_seed(123)
    before = torch.get_rng_state()
    one = settings_.build(task, seed=3).state_dict()
    assert torch.equal(torch.get_rng_state(), before), "torch's own generator must be left alone"
    torch.manual_seed(456)
    other = settings_.build(task, seed=3).state_dict()
    different = settings_.build(task, seed=4).state_dict()
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert any(not torch.equal(one[name], different[name]) for name in one)


@pytest.mark.parametrize("system", [name for name in SYSTEMS if name != "mrnn_hf"])
def test_a_few_steps_lower_the_loss(system: str) -> None:
    task = CopyTask(lag=1)
    settings_, model = build(system, task, hidden=20)
    optimiser = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    batch = task.prepare().stream(BATCH, seed=0).next()
    objectives = []
    for _ in range(40):
        losses = settings_.losses(model, task, batch, None)
        optimiser.zero_grad()
        losses.objective.backward()
        optimiser.step()
        objectives.append(losses.objective.item())
    assert objectives[-1] < 0.9 * objectives[0]


@pytest.mark.parametrize("system", SYSTEMS)
def test_the_output_bias_starts_at_zero_or_at_the_mean_of_the_targets(system: str) -> None:
    assert SYSTEMS[system](hidden=4).build(AddingTask(), seed=0).readout.bias.item() == 0.0
    assert SYSTEMS[system](hidden=4, mean_bias=True).build(AddingTask(), seed=0).readout.bias.item() == 1.0


def test_hidden_units_must_be_positive() -> None:
    with pytest.raises(ValueError, match="hidden must be at least 1, got 0"):
        RnnReluSystem(hidden=0)


# --- plain nets ---------------------------------------------------------------------------------------------------


def test_initial_values_of_the_paper() -> None:
    adding = RnnPathSystem().build(AddingTask(), seed=0)
    assert torch.equal(adding.rnn.weight_hh_l0, torch.eye(100))
    for weight in (adding.input_matrix, adding.readout.weight):
        assert 0.009 < weight.abs().max() <= 0.01
    assert not adding.rnn.bias_ih_l0.any() and not adding.readout.bias.any()

    text = RnnReluSystem(hidden=300).build(PtbCharTask(), seed=0)
    assert 0.0099 < text.rnn.weight_hh_l0.abs().max() <= 0.01
    assert 0.19 < text.input_matrix.abs().max() <= 0.2 and 0.19 < text.readout.weight.abs().max() <= 0.2

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
    orthogonal = RnnTanhSystem(hidden=30, recurrent="orthogonal").build(task, seed=0).rnn.weight_hh_l0
    torch.testing.assert_close(orthogonal @ orthogonal.t(), torch.eye(30), atol=1e-5, rtol=0)
    uniform = IrnnSystem(hidden=30, recurrent="uniform", recurrent_range=0.7).build(task, seed=0).rnn.weight_hh_l0
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


@pytest.mark.parametrize("task", [TASKS["adding"], TASKS["ptb_char"], TASKS["ptb_word"]], ids=lambda task: task.name)
@pytest.mark.parametrize("system", [name for name, system in SYSTEMS.items() if system.path_rules])
def test_path_rules_read_the_net(system: str, task: Task) -> None:
    """gamma^2 of the net is that of h_t = W_in'^2 1 + b^2 + W_rec^2 h_{t-1}, with every symbol an input."""
    net = SYSTEMS[system](hidden=60).build(task, seed=0)
    with torch.no_grad():
        for bias in (net.rnn.bias_ih_l0, net.rnn.bias_hh_l0, net.readout.bias):
            bias.uniform_(-0.1, 0.1)
    by_symbol = task.tokens and task.input_size > 60
    squared_in = net.input_matrix.double().square().sum(0 if by_symbol else 1)
    squared_in = squared_in + net.rnn.bias_ih_l0.double().square() + net.rnn.bias_hh_l0.double().square()
    h = torch.zeros(60, dtype=torch.float64)
    outputs = []
    for _ in range(task.length):
        h = squared_in + net.rnn.weight_hh_l0.double().square() @ h
        outputs.append((net.readout.weight.double().square() @ h + net.readout.bias.double().square()).sum())
    expected = torch.stack(outputs).sum() if task.every_step else outputs[-1]
    found = pathsgd.gamma_sq(net, task.example_inputs(2))
    assert found.item() == pytest.approx(expected.item(), rel=1e-9)


@given(size=st.integers(2, 40), seed=st.integers(0, 100))
@settings(deadline=None, max_examples=25)
def test_np_rnn_has_one_eigenvalue_one_and_the_others_between_zero_and_one(size: int, seed: int) -> None:
    weight = NpRnnSystem(hidden=size).build(AddingTask(), seed).rnn.weight_hh_l0.detach().double()
    assert torch.equal(weight, weight.t())
    eigenvalues = torch.linalg.eigvalsh(weight)
    assert eigenvalues[-1].item() == pytest.approx(1.0, abs=1e-6)
    assert (eigenvalues[:-1] >= 0).all() and (eigenvalues[:-1] < 1 - 1e-9).all()


def test_np_rnn_input_weights_have_the_published_scale() -> None:
    net = NpRnnSystem(hidden=100).build(SequentialMnistTask(), seed=0)
    stacked = torch.cat([NpRnnSystem(hidden=100).build(SequentialMnistTask(), s).input_matrix for s in range(30)])
    expected = math.sqrt(2.0) * math.exp(1.2 / 97.6) / 100
    assert stacked.std().item() == pytest.approx(expected, rel=0.05)
    assert not net.rnn.bias_ih_l0.any()


# --- penalties and nonlinearities ---------------------------------------------------------------------------------


@given(steps=st.integers(1, 6), seed=st.integers(0, 100), beta=st.floats(0.0, 1000.0), carried=st.booleans())
@settings(deadline=None)
def test_norm_stabiliser_equals_its_formula(steps: int, seed: int, beta: float, carried: bool) -> None:
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
    assert NormStabilizerSystem(beta=beta).penalty(hidden, initial).item() == pytest.approx(expected, rel=1e-9)


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


# --- unitary net --------------------------------------------------------------------------------------------------


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
    assert (model.transition() - before).abs().max() > 0.1, "the matrix must have moved for this to mean anything"


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
    w = d[2] @ reflections[1] @ fourier.conj().t() @ d[1] @ shuffle @ reflections[0] @ fourier @ d[0]
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


# --- gated and multiplicative nets --------------------------------------------------------------------------------


@pytest.mark.parametrize(("system", "gates"), [(LstmSystem(hidden=20), 4), (GruSystem(hidden=20), 3)])
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
            matrix = net.recurrent @ torch.diag(net.input_factors.weight[symbol]) @ net.hidden_factors
            rows.append(torch.tanh(matrix @ h[b] + net.input.weight[symbol] + net.bias))
        h = torch.stack(rows)
        torch.testing.assert_close(found, net.readout(h))


def test_multiplicative_net_starts_sparse() -> None:
    net = MrnnHfSystem(hidden=60).build(PtbCharTask(), seed=0)
    for weight in (net.recurrent, net.hidden_factors, net.readout.weight):
        assert ((weight != 0).sum(1) == 15).all()
