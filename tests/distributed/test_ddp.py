"""Training with DistributedDataParallel is the same training, for any number of processes."""

from __future__ import annotations

import contextlib
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor.debug import CommDebugMode
from torch.nn.parallel import DistributedDataParallel

from pathsgd import PathAdam, random_rescaling
from support.parallel import MODELS, OPTIMIZERS, assert_ranks_agree, batch_of, make, share
from support.processes import in_processes


def train(
    model: str, optimizer: str, steps: int, given: str = "wrapper", rescaled: bool = False
) -> dict[str, Tensor]:
    made, shape = make(model), MODELS[model][1]
    if rescaled:
        generator = torch.Generator().manual_seed(1)
        random_rescaling(made, batch_of(0, shape)[0], low=0.1, high=10, generator=generator)
    parallel = DistributedDataParallel(made)
    steps_taken = OPTIMIZERS[optimizer](parallel if given == "wrapper" else made)
    for step in range(steps):
        x, y = (share(t) for t in batch_of(step, shape))
        steps_taken.zero_grad()
        (parallel(x) - y).square().mean().backward()
        steps_taken.step()
    return {name: p.detach() for name, p in made.named_parameters()}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("model", ["recurrent", "feed-forward"])
def test_one_two_and_four_ranks_train_alike(model: str, optimizer: str) -> None:
    runs = {world: in_processes(world, train, model, optimizer, 50) for world in (1, 2, 4)}
    for results in runs.values():
        assert_ranks_agree(results)
    for world in (2, 4):
        for name, value in runs[1][0].items():
            torch.testing.assert_close(runs[world][0][name], value, rtol=1e-6, atol=0)


def test_the_wrapper_or_the_module_may_be_given() -> None:
    wrapper, module = (
        in_processes(2, train, "recurrent", "PathAdam", 10, given)
        for given in ("wrapper", "module")
    )
    assert_ranks_agree([*wrapper, *module])


def test_batch_normalisation_does_not_drive_ranks_apart() -> None:
    assert_ranks_agree(in_processes(2, train, "batch norm", "PathAdam", 30))


def train_lengths(example: bool) -> tuple[dict[str, Tensor], int]:
    """Every rank has its own sequence length; collectives of the optimiser's steps are counted."""
    made = make("recurrent")
    parallel = DistributedDataParallel(made)
    given = torch.zeros(1, 5, 2, dtype=torch.float64) if example else None
    optimizer = PathAdam(parallel, lr=3e-3, example_inputs=given)
    used = 0
    for step in range(6):
        x, y = (share(t) for t in batch_of(step, (5, 2), length=4 + dist.get_rank() + step % 2))
        optimizer.zero_grad()
        (parallel(x) - y).square().mean().backward()
        with CommDebugMode() as debug:
            optimizer.step()
        used += debug.get_total_counts()
    return {name: p.detach() for name, p in made.named_parameters()}, used


def test_sequences_of_other_lengths_do_not_drive_ranks_apart() -> None:
    results = in_processes(2, train_lengths, False)
    assert_ranks_agree([result for result, _ in results])
    assert [used for _, used in results] == [
        0,
        0,
    ]  # shapes go through the store that the processes met in


class Steered(nn.Module):
    """How often a layer is used, and which of its inputs count, are values of the inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.again, self.head = nn.Linear(3, 6), nn.Linear(6, 6), nn.Linear(6, 1)

    def forward(self, x: Tensor, times: Tensor | int, mask: Tensor) -> Tensor:
        h = torch.relu(self.enter(x).masked_fill(mask, 0.0))
        for _ in range(int(times)):
            h = torch.relu(self.again(h))
        return self.head(h)


def train_steered(kind: type) -> dict[str, Tensor]:
    torch.manual_seed(3)
    model = Steered().double()
    parallel = DistributedDataParallel(model)
    optimizer = PathAdam(parallel, lr=3e-3)
    for step in range(6):
        x, y = (share(t) for t in batch_of(step, (3,)))
        times, mask = 1 + dist.get_rank() + step % 2, torch.arange(6) < dist.get_rank() + step % 2
        optimizer.zero_grad()
        given = torch.tensor(times) if kind is Tensor else times
        (parallel(x, given, mask) - y).square().mean().backward()
        optimizer.step()
    return {name: p.detach() for name, p in model.named_parameters()}


@pytest.mark.parametrize("kind", [Tensor, int])
def test_values_that_are_structure_do_not_drive_ranks_apart(kind: type) -> None:
    assert_ranks_agree(in_processes(2, train_steered, kind))


def test_nothing_is_communicated_where_the_shapes_are_given() -> None:
    results = in_processes(2, train_lengths, True)
    assert_ranks_agree([result for result, _ in results])
    assert [used for _, used in results] == [0, 0]


def accumulate() -> tuple[dict[str, Tensor], int]:
    """Half batches, the first without synchronisation."""
    made = make("recurrent")
    parallel = DistributedDataParallel(made)
    optimizer, measured = PathAdam(parallel, lr=3e-3), 0
    count = optimizer._refresh.measure
    for step in range(4):
        x, y = (share(t) for t in batch_of(step, (5, 2)))
        optimizer.zero_grad()
        for i, (part, wanted) in enumerate(zip(x.chunk(2), y.chunk(2))):
            with parallel.no_sync() if i == 0 else contextlib.nullcontext():
                (parallel(part) - wanted).square().mean().div(2).backward()
        with patch.object(optimizer._refresh, "measure", wraps=count) as spy:
            optimizer.step()
        measured += spy.call_count
    return {name: p.detach() for name, p in made.named_parameters()}, measured


def test_accumulated_gradients_take_one_measurement_a_step() -> None:
    results = in_processes(2, accumulate)
    assert_ranks_agree([result for result, _ in results])
    assert [measured for _, measured in results] == [4, 4]


def test_rescaled_twins_stay_twins_across_ranks() -> None:
    """The functions stay equal: so do outputs on any batch."""
    one, two = (in_processes(2, outputs, rescaled)[0] for rescaled in (False, True))
    torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-9)


def outputs(rescaled: bool) -> Tensor:
    model = make("recurrent")
    model.load_state_dict(train("recurrent", "PathAdam", 20, rescaled=rescaled))
    return model(batch_of(99, (5, 2))[0]).detach()


def test_zero_redundancy_is_refused() -> None:
    """It gives every process parameters without their model."""
    with pytest.raises(RuntimeError, match="the first argument is the model itself"):
        in_processes(1, zero_redundancy)


def zero_redundancy() -> None:
    ZeroRedundancyOptimizer(make("recurrent").parameters(), optimizer_class=PathAdam, lr=1e-3)
