"""torch.distributed.checkpoint: a run saved by some processes continues the same in others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

from pathsgd import PathAdam, PathMuon, PathSGD, PathSOAP
from support.parallel import assert_ranks_agree, batch_of, share
from support.processes import in_processes

pytestmark = pytest.mark.skipif(
    torch.__version__.startswith("2.6."),
    reason="torch 2.6 cannot run a module of fully_shard on the CPU",
)


class Net(nn.Module):
    """A recurrent net with a frozen parameter, and a layer that its forward pass leaves out."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.RNN(2, 6, nonlinearity="relu", batch_first=True)
        self.head = nn.Linear(6, 1)
        self.dead = nn.Linear(6, 3)
        self.rnn.bias_ih_l0.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[0][:, -1])


OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "PathAdam": lambda m: PathAdam(m, lr=3e-3, refresh_every=3),
    "absolute": lambda m: PathAdam(m, lr=3e-3, metric="absolute"),
    "PathSGD": lambda m: PathSGD(m, lr=1e-2, momentum=0.9, refresh_every=3),
    "PathSOAP": lambda m: PathSOAP(
        m, lr=3e-3, max_dim=6, refresh_every=3, precondition_frequency=3
    ),
    "PathMuon": lambda m: PathMuon(m, lr=3e-3, refresh_every=3),
    "paper": lambda m: PathSGD(m, lr=1e-2, metric="paper", scale="sgd"),
    "Adam of the paper": lambda m: PathAdam(m, lr=1e-3, metric="paper", refresh_every=3),
}


def made(optimizer: str, shards: bool) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(3)
    model = Net().double()
    if shards:
        fully_shard(model.rnn)
        fully_shard(model)
    return model, OPTIMIZERS[optimizer](model)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        x, y = (share(t) for t in batch_of(step, (5, 2)))
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()


def values(model: nn.Module) -> dict[str, Tensor]:
    full = {
        name: p.full_tensor() if hasattr(p, "full_tensor") else p
        for name, p in model.named_parameters()
    }
    return {name: p.detach().clone() for name, p in full.items()}


def save(model: nn.Module, optimizer: torch.optim.Optimizer, folder: Path) -> None:
    model_state, optimizer_state = get_state_dict(model, optimizer)
    dcp.save({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=folder)


def load(model: nn.Module, optimizer: torch.optim.Optimizer, folder: Path) -> None:
    """Into a new optimiser without a forward pass: torch steps with lr = 0 to create its state."""
    model_state, optimizer_state = get_state_dict(model, optimizer)
    state: dict[str, Any] = {"model": model_state, "optimizer": optimizer_state}
    dcp.load(state, checkpoint_id=folder)
    set_state_dict(
        model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
    )


def run(
    optimizer: str, steps: range, source: Path | None, target: Path, shards: bool = True
) -> dict[str, Tensor]:
    model, steps_taken = made(optimizer, shards)
    if source is not None:
        load(model, steps_taken, source)
    train(model, steps_taken, steps)
    save(model, steps_taken, target)
    return values(model)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_resumed_run_is_the_same_run(optimizer: str, tmp_path: Path) -> None:
    wanted = in_processes(2, run, optimizer, range(8), None, tmp_path / "whole")
    in_processes(2, run, optimizer, range(4), None, tmp_path / "half")
    found = in_processes(2, run, optimizer, range(4, 8), tmp_path / "half", tmp_path / "end")
    assert_ranks_agree([*wanted, *found])


@pytest.mark.parametrize("optimizer", ["PathAdam", "PathSOAP", "PathMuon"])
def test_four_processes_then_two_then_one(optimizer: str, tmp_path: Path) -> None:
    """The last one has the model whole."""
    (wanted,) = in_processes(1, run, optimizer, range(12), None, tmp_path / "whole", False)
    in_processes(4, run, optimizer, range(4), None, tmp_path / "four")
    in_processes(2, run, optimizer, range(4, 8), tmp_path / "four", tmp_path / "two")
    (found,) = in_processes(
        1, run, optimizer, range(8, 12), tmp_path / "two", tmp_path / "one", False
    )
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=1e-6, atol=0)


def test_two_processes_then_four(tmp_path: Path) -> None:
    (wanted,) = in_processes(1, run, "PathSOAP", range(8), None, tmp_path / "whole", False)
    in_processes(2, run, "PathSOAP", range(4), None, tmp_path / "two")
    found = in_processes(4, run, "PathSOAP", range(4, 8), tmp_path / "two", tmp_path / "four")
    assert_ranks_agree(found)
    for name, value in wanted.items():
        torch.testing.assert_close(found[0][name], value, rtol=1e-6, atol=0)


def test_whole_states_go_to_parts_and_back() -> None:
    """full_state_dict: one process has the whole state, and the others take their parts of it."""
    wanted, found = zip(*in_processes(2, through_a_full_state))
    assert_ranks_agree([*wanted, *found])


def through_a_full_state() -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    options = StateDictOptions(full_state_dict=True)
    model, optimizer = made("PathAdam", shards=True)
    train(model, optimizer, range(4))
    saved = get_state_dict(model, optimizer, options=options)
    train(model, optimizer, range(4, 8))
    again, resumed = made("PathAdam", shards=True)
    set_state_dict(
        again, resumed, model_state_dict=saved[0], optim_state_dict=saved[1], options=options
    )
    train(again, resumed, range(4, 8))
    return values(model), values(again)


def test_laying_out_states_changes_nothing() -> None:
    """What torch.distributed.checkpoint does to a new optimiser leaves no trace in the run."""
    wanted, found = zip(*in_processes(1, laid_out))
    assert_ranks_agree([*wanted, *found])


def laid_out() -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    (model, optimizer), (other, touched) = (made("PathAdam", shards=False) for _ in range(2))
    get_state_dict(other, touched)
    train(model, optimizer, range(4))
    train(other, touched, range(4))
    return values(model), values(other)
