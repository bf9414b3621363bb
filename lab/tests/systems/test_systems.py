"""Every system on every kind of task: shapes, states, seeds, and a loss that falls."""

import pytest
import torch

from pathsgd_lab.run.spec import default_spec, replace_settings
from pathsgd_lab.systems import SYSTEMS, RnnReluSystem
from pathsgd_lab.tasks import AddingTask, CopyTask, SequentialMnistTask, Task, detach_state
from small_tasks import BATCH, TASKS, build, random_batch


def test_every_system_is_listed_under_its_own_name() -> None:
    assert {name: system.name for name, system in SYSTEMS.items()} == {
        name: name for name in SYSTEMS
    }
    assert len({system.title for system in SYSTEMS.values()}) == len(SYSTEMS) == 16


RECURRENT = [name for name, system in SYSTEMS.items() if system.any_length]
"""The systems that have a state and take text."""
FITTING = [(s, t) for s in SYSTEMS for t, task in TASKS.items() if not SYSTEMS[s]().misfit(task)]


@pytest.mark.parametrize(
    ("system", "task"), [(s, TASKS[t]) for s, t in FITTING], ids=["-".join(p) for p in FITTING]
)
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
            # U[-0.01, 0.01] nets have gradients too small to be told from zero only where they are
            # zero.
            assert parameter.grad.any() or "bias_hh" in name, name


def test_a_net_that_does_not_fit_a_task_says_so() -> None:
    misfits = {
        (s, t): SYSTEMS[s]().misfit(task)
        for s in SYSTEMS
        for t, task in TASKS.items()
        if (s, t) not in FITTING
    }
    assert {s for s, _ in misfits} == {"mlp", "autoencoder", "cnn"}
    assert ("mlp", "adding") not in misfits and "square images" in misfits["cnn", "adding"]
    assert "wants an answer at every step" in misfits["mlp", "ptb_char"]
    with pytest.raises(ValueError, match="wants an answer at every step"):
        default_spec("ptb_char", "mlp")
    with pytest.raises(ValueError, match="one length only"):
        replace_settings(default_spec("adding", "mlp"), start_length=5)


@pytest.mark.parametrize("system", RECURRENT)
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
    task = SequentialMnistTask(subsample=7) if system == "cnn" else task
    torch.manual_seed(123)
    before = torch.get_rng_state()
    one = settings_.build(task, seed=3).state_dict()
    assert torch.equal(torch.get_rng_state(), before), "torch's own generator must be left alone"
    torch.manual_seed(456)
    other = settings_.build(task, seed=3).state_dict()
    different = settings_.build(task, seed=4).state_dict()
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert any(not torch.equal(one[name], different[name]) for name in one)


@pytest.mark.parametrize("system", [name for name in RECURRENT if name != "mrnn_hf"])
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


@pytest.mark.parametrize("system", [name for name in SYSTEMS if name != "cnn"])
def test_the_output_bias_starts_at_zero_or_at_the_mean_of_the_targets(system: str) -> None:
    assert SYSTEMS[system](hidden=4).build(AddingTask(), seed=0).readout.bias.item() == 0.0
    assert (
        SYSTEMS[system](hidden=4, mean_bias=True).build(AddingTask(), seed=0).readout.bias.item()
        == 1.0
    )


def test_hidden_units_must_be_positive() -> None:
    with pytest.raises(ValueError, match="hidden must be at least 1, got 0"):
        RnnReluSystem(hidden=0)
