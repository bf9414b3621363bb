"""Hessian-free steps: exact on a quadratic, never upwards, resumable, with the right curvature."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.func import functional_call, jacrev

from pathsgd_lab.run.optimisers.hessian_free import HessianFree
from pathsgd_lab.systems import LstmSystem, MrnnHfSystem, SequenceNet
from pathsgd_lab.tasks import AddingTask, Batch, CopyTask
from pathsgd_lab.tasks.base import State


class LinearNet(SequenceNet):
    """No recurrence at all: the loss of its outputs is a quadratic in its parameters."""

    def __init__(self) -> None:
        super().__init__(AddingTask(length=2), 2)

    def unroll(self, inputs: Tensor, state: State | None, all_steps: bool) -> tuple[Tensor, State]:
        return (inputs if all_steps else inputs[-1]), (inputs[-1],)


@given(seed=st.integers(0, 1000), scale=st.floats(0.1, 100.0))
@settings(max_examples=20)
def test_one_step_reaches_the_minimum_of_a_quadratic(seed: int, scale: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    inputs = scale * torch.randn(2, 30, 2, generator=generator, dtype=torch.float64)
    targets = torch.randn(30, 1, generator=generator, dtype=torch.float64)
    model = LinearNet().double()
    loss = torch.nn.functional.mse_loss
    HessianFree(model, loss, damping=0.0, structural=0.0, cg_tolerance=1e-13).step(
        Batch(inputs, targets, False)
    )
    design = torch.cat([inputs[-1], torch.ones(30, 1, dtype=torch.float64)], dim=1)
    best = torch.linalg.lstsq(design, targets).solution
    found = torch.cat([model.readout.weight.detach().t(), model.readout.bias.detach().unsqueeze(1)])
    torch.testing.assert_close(found, best, rtol=1e-6, atol=1e-8)


def problem(seed: int = 0) -> tuple[AddingTask, SequenceNet, Batch]:
    task = AddingTask(length=4)
    model = MrnnHfSystem(hidden=3, factors=2).build(task, seed).double()
    inputs, targets, _ = task.prepare().stream(5, seed).next()
    return task, model, Batch(inputs.double(), targets.double(), False)


@pytest.mark.parametrize("weight", [0.0, 0.7])
def test_the_curvature_is_gauss_newton_plus_structural_damping(weight: float) -> None:
    """G = J_y^T H_y J_y + weight J_h^T J_h, with the Jacobians written out."""
    task, model, batch = problem()
    optimiser = HessianFree(model, task.loss)
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def outputs_and_hidden(values: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        class Both(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.model = model

            def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
                outputs, _, hidden = self.model.forward_with_hidden(inputs)
                return outputs.flatten(), hidden.flatten()

        return functional_call(
            Both(), {f"model.{name}": value for name, value in values.items()}, (batch.inputs,)
        )

    def flat(jacobian: dict[str, Tensor]) -> Tensor:
        return torch.cat([jacobian[name].flatten(1) for name in parameters], dim=1)

    by_outputs, by_hidden = jacrev(outputs_and_hidden)(parameters)
    j_y, j_h = flat(by_outputs), flat(by_hidden)
    expected = (
        2.0 / 5 * j_y.t() @ j_y + weight * j_h.t() @ j_h
    )  # mean squared error of five outputs
    curvature = optimiser._curvature(batch, None, weight)
    columns = [curvature @ unit for unit in np.eye(len(expected))]
    found = torch.from_numpy(np.stack(columns, axis=1))
    torch.testing.assert_close(found, expected)


def test_steps_never_raise_the_loss_and_learn() -> None:
    task = CopyTask(lag=1)
    model = MrnnHfSystem(hidden=16).build(task, seed=0)
    batch = task.prepare().stream(20, seed=0).next()
    optimiser = HessianFree(model, task.loss)
    losses = [optimiser.step(batch).loss.item() for _ in range(6)]
    assert all(after <= before for before, after in itertools.pairwise(losses))
    assert losses[-1] < 0.7 * losses[0]


def test_damping_falls_where_the_model_is_right_and_rises_where_it_is_not() -> None:
    batch = problem()[2]
    optimiser = HessianFree(
        LinearNet().double(), torch.nn.functional.mse_loss, damping=1e-6, structural=0.0
    )
    optimiser.step(batch)
    assert optimiser.param_groups[0]["damping"] == pytest.approx(1e-6 * 2 / 3)

    def bent(outputs: Tensor, targets: Tensor) -> Tensor:
        # Nearly flat at the start, steep soon after: Gauss and Newton's quadratic misses it.
        return (
            (outputs**2).mean() * 1e-3
            + torch.relu(outputs.abs() - 0.5).mean() * 1e3
            - outputs.mean()
        )

    small = LinearNet().double()
    with torch.no_grad():
        for parameter in small.parameters():
            parameter.mul_(1e-3)
    wary = HessianFree(small, bent, damping=1e-6, structural=0.0)
    before = bent(small(batch.inputs)[0], batch.targets).item()
    wary.step(batch)
    assert wary.param_groups[0]["damping"] == pytest.approx(1.5e-6)
    assert bent(small(batch.inputs)[0], batch.targets).item() <= before


def test_a_saved_optimiser_continues_bit_for_bit() -> None:
    task, model, batch = problem(seed=3)
    optimiser = HessianFree(model, task.loss)
    for _ in range(2):
        optimiser.step(batch)
    _, twin, _ = problem(seed=8)
    twin.load_state_dict(model.state_dict())
    resumed = HessianFree(twin, task.loss)
    resumed.load_state_dict(optimiser.state_dict())
    for _ in range(2):
        assert optimiser.step(batch).loss == resumed.step(batch).loss
    assert all(
        torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True)
    )


def test_at_a_minimum_and_at_infinity_nothing_moves() -> None:
    model = LinearNet().double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    inputs = torch.randn(2, 4, 2, dtype=torch.float64)
    optimiser = HessianFree(model, torch.nn.functional.mse_loss)
    optimiser.step(Batch(inputs, torch.zeros(4, 1, dtype=torch.float64), False))
    lost = optimiser.step(Batch(inputs, torch.full((4, 1), torch.inf, dtype=torch.float64), False))
    assert lost.loss.isnan()
    assert all(not parameter.any() for parameter in model.parameters())


def test_a_part_without_forward_derivatives_is_named() -> None:
    task = AddingTask(length=3)
    model = LstmSystem(hidden=3).build(task, seed=0)
    batch = task.prepare().stream(2, seed=0).next()
    with pytest.raises(ValueError, match="a part of GatedNet lacks: choose another optimiser"):
        HessianFree(model, task.loss).step(batch)


def test_negative_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 0"):
        HessianFree(LinearNet(), torch.nn.functional.mse_loss, damping=-1.0)
