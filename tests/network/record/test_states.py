"""States that are handed from one call to the next: truncated back-propagation through time."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import pathsgd
from pathsgd.nn import carried

X = torch.randn(4, 2, 3, generator=torch.Generator().manual_seed(0))


class Loop(nn.Module):
    """A recurrence by hand that goes on where the last call stopped."""

    def __init__(self, says: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.w_in, self.w_rec = (
            nn.Parameter(torch.randn(3, 5) / 3),
            nn.Parameter(torch.randn(5, 5) / 5),
        )
        self.out, self.says = nn.Linear(5, 1), says

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h, outputs = carried(h) if self.says else h, []
        for x_t in x:
            h = torch.relu(x_t @ self.w_in + h @ self.w_rec)
            outputs.append(self.out(h))
        return torch.stack(outputs), h


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.rnn, self.out = nn.RNN(3, 5, nonlinearity="relu"), nn.Linear(5, 1)

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        states, h = self.rnn(x, h)
        return self.out(states), h


MODELS = {"loop": (Loop, torch.rand(2, 5)), "layer": (Layer, torch.rand(1, 2, 5))}


@pytest.mark.parametrize("name", MODELS)
def test_a_state_starts_no_path_and_pins_no_unit(name: str) -> None:
    make, h = MODELS[name]
    model = make()
    found = pathsgd.gamma_sq(model, X, h, output=0)
    assert float(found.detach()) == pytest.approx(
        float(pathsgd.gamma_sq(model, X, 0 * h, output=0).detach())
    )
    assert pathsgd.node_spaces(model, X, h, output=0).count == 5
    report = pathsgd.check_invariance(
        model, X, h, optimizer=lambda m: pathsgd.PathAdam(m, output=0), steps=3, output=0
    )
    assert report.ok and max(report.drift["PathAdam"]) < 1e-9


def test_an_input_that_nobody_calls_a_state_is_one_like_others() -> None:
    assert pathsgd.node_spaces(Loop(says=False), X, torch.rand(2, 5), output=0).count == 0


@pytest.mark.parametrize("name", MODELS)
def test_rescaled_twins_train_alike_from_chunk_to_chunk(name: str) -> None:
    make, h = MODELS[name]
    ours, twin = make().double(), make().double()
    x = torch.randn(6, *X.shape, generator=torch.Generator().manual_seed(1)).double()
    pathsgd.random_rescaling(twin, x[0], h.double(), output=0, low=0.1, high=10)
    results = []
    for model in (ours, twin):
        optimizer, state, losses = pathsgd.PathAdam(model, lr=1e-2, output=0), 0 * h.double(), []
        for chunk in x:
            optimizer.zero_grad()
            y, state = model(chunk, state.detach())
            loss = (y - 1).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        results.append(losses)
    assert results[1] == pytest.approx(results[0], rel=1e-6)
    assert results[0][-1] < results[0][0]


def test_outside_of_measurements_it_is_the_state_itself() -> None:
    h = torch.rand(2, 5)
    assert carried(h) is h
