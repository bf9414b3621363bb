"""Training with fully_shard (FSDP2) is the same training, in any number of processes."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor.debug import CommDebugMode

import pathsgd
from pathsgd import PathAdam, PathSGD, random_rescaling
from pathsgd.distributed.sharded import whole_parameters
from pathsgd.optim import bound_growth_, plan, scale_free, wrap
from support.parallel import MODELS, OPTIMIZERS, assert_ranks_agree, batch_of, make, share
from support.processes import in_processes

pytestmark = pytest.mark.skipif(
    torch.__version__.startswith("2.6."),
    reason="torch 2.6 cannot run a module of fully_shard on the CPU",
)
Make = Callable[[nn.Module], torch.optim.Optimizer]


def sharded(model: nn.Module, mesh: DeviceMesh | None = None) -> nn.Module:
    """Layer by layer, as one does it."""
    for layer in model.children():
        if any(True for _ in layer.parameters()):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def steps_of(
    model: nn.Module, optimizer: torch.optim.Optimizer, shape: tuple[int, ...], steps: range
) -> None:
    for step in steps:
        x, y = (share(t) for t in batch_of(step, shape))
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()


def values(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach() for name, p in whole_parameters(model).items()}


def train(name: str, optimizer: str, steps: int, shards: bool = True) -> dict[str, Tensor]:
    model = sharded(make(name)) if shards else make(name)
    steps_of(model, (OPTIMIZERS | OTHERS)[optimizer](model), MODELS[name][1], range(steps))
    return values(model)


def test_four_ranks_train_soap_like_one_process() -> None:
    assert_trains_alike("recurrent", "PathSOAP", 20, (4,))


@pytest.mark.parametrize("optimizer", ["PathSOAP", "PathMuon"])
def test_each_direction_is_computed_by_one_rank(optimizer: str) -> None:
    """Also after another layer has joined; then all ranks have the same state."""
    results = in_processes(2, counted, optimizer)
    computed, states = zip(*results)
    assert [sum(counts) for counts in zip(*computed)] == [4 * 4, 4 * 6]
    assert all(all(counts) for counts in computed)
    assert_ranks_agree(list(states))


def counted(optimizer: str) -> tuple[list[int], dict[str, Tensor]]:
    """How many directions this rank computed in 4 steps without the last layer and 4 with it."""
    model = sharded(make("feed-forward"))
    made = OPTIMIZERS[optimizer](model)
    last = list(model.children())[-1].requires_grad_(False)
    rule, counts = made.plan.rule, []  # type: ignore[attr-defined]
    for frozen in (True, False):
        last.requires_grad_(not frozen)
        with patch.object(rule, "direction", wraps=rule.direction) as direction:
            steps_of(model, made, MODELS["feed-forward"][1], range(4))
        counts.append(direction.call_count)
    entries = {
        f"{index}.{key}": torch.as_tensor(value)
        for index, state in made.state_dict()["state"].items()
        for key, value in state.items()
        if not hasattr(value, "full_tensor")
    }
    return counts, entries


OTHERS: dict[str, Make] = {
    "absolute": lambda m: PathAdam(m, lr=3e-3, metric="absolute"),
    "paper, sgd's length": lambda m: PathSGD(m, lr=1e-2, metric="paper", scale="sgd", clip=0.5),
    "Adam of the paper": lambda m: PathAdam(m, lr=1e-3, metric="paper"),
    "rho 0.5": lambda m: PathSGD(m, lr=3e-2, metric=pathsgd.Metric(rho=0.5), momentum=0.5),
}


def assert_trains_alike(name: str, optimizer: str, steps: int, worlds: tuple[int, ...]) -> None:
    (alone,) = in_processes(1, train, name, optimizer, steps, False)
    for world in worlds:
        results = in_processes(world, train, name, optimizer, steps)
        assert_ranks_agree(results)
        for parameter, value in alone.items():
            torch.testing.assert_close(results[0][parameter], value, rtol=1e-6, atol=0)


def test_one_two_and_four_ranks_train_like_one_process() -> None:
    assert_trains_alike("recurrent", "PathAdam", 50, (1, 2, 4))


@pytest.mark.parametrize(
    ("name", "optimizer"),
    [
        ("recurrent", "PathSGD"),
        ("feed-forward", "PathAdam"),
        ("feed-forward", "PathSOAP"),
        ("recurrent", "PathMuon"),
    ],
)
def test_two_ranks_train_like_one_process(name: str, optimizer: str) -> None:
    assert_trains_alike(name, optimizer, 50, (2,))


@pytest.mark.parametrize("optimizer", OTHERS)
def test_every_metric_trains_like_one_process(optimizer: str) -> None:
    assert_trains_alike("recurrent", optimizer, 8, (2,))


def test_batch_normalisation_keeps_the_lengths_of_rows() -> None:
    """Statistics are each process's own, as under DDP: the weights agree all the same."""
    lengths, results = zip(*in_processes(2, row_lengths))
    assert_ranks_agree(list(results))
    for before, after in lengths:
        torch.testing.assert_close(before, after)


def row_lengths() -> tuple[tuple[Tensor, Tensor], dict[str, Tensor]]:
    """Rows before a normalisation keep lengths: inputs have no units, so lengths are plain."""
    model = sharded(make("batch norm"))
    optimizer = PathAdam(model, lr=3e-2)
    steps_of(model, optimizer, (3,), range(1))
    before = values(model)
    steps_of(model, optimizer, (3,), range(1, 9))
    after = values(model)
    squares = [v["0.weight"].square().sum(1) + v["0.bias"].square() for v in (before, after)]
    return (squares[0], squares[1]), after


def test_rescaled_twins_stay_twins_across_ranks() -> None:
    one, two = (in_processes(2, outputs, rescaled)[0] for rescaled in (False, True))
    torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-9)


def outputs(rescaled: bool) -> Tensor:
    model = make("recurrent")
    if rescaled:
        generator = torch.Generator().manual_seed(1)
        random_rescaling(model, batch_of(0, (5, 2))[0], low=0.1, high=10, generator=generator)
    sharded(model)
    steps_of(model, PathAdam(model, lr=3e-3), (5, 2), range(20))
    return model(batch_of(99, (5, 2))[0]).detach()


@pytest.mark.parametrize("optimizer", ["PathAdam", "PathSOAP", "PathMuon"])
def test_replicated_and_sharded_at_once(optimizer: str) -> None:
    """Two dimensions of processes: copies in one, parts in the other."""
    (alone,) = in_processes(1, train, "recurrent", optimizer, 8, False)
    results = in_processes(4, train_hybrid, optimizer)
    assert_ranks_agree(results)
    for name, value in alone.items():
        torch.testing.assert_close(results[0][name], value, rtol=1e-6, atol=0)


def train_hybrid(optimizer: str) -> dict[str, Tensor]:
    model = sharded(
        make("recurrent"), init_device_mesh("cpu", (2, 2), mesh_dim_names=("copies", "parts"))
    )
    steps_of(model, OPTIMIZERS[optimizer](model), (5, 2), range(8))
    return values(model)


@pytest.mark.parametrize("optimizer", ["PathAdam", "PathSOAP", "PathMuon"])
def test_the_step_of_other_devices_takes_parts_as_well(optimizer: str) -> None:
    """It has passes of its own (optim/device.py); here they run on the CPU."""
    for usual, other in zip(
        *(in_processes(2, train_elsewhere, optimizer, forced) for forced in (False, True))
    ):
        for name, value in usual.items():
            torch.testing.assert_close(other[name], value, rtol=1e-6, atol=1e-12)


def train_elsewhere(optimizer: str, forced: bool) -> dict[str, Tensor]:
    model = sharded(make("recurrent"))
    with patch.object(plan, "_are_on_device", lambda parts: forced):
        steps_of(model, OPTIMIZERS[optimizer](model), (5, 2), range(8))
    return values(model)


def test_rows_of_other_devices_are_spread_as_well() -> None:
    """They are measured all at once there (`FlatRows`); here on the CPU."""
    for usual, other in zip(*(in_processes(2, train_rows, forced) for forced in (False, True))):
        for name, value in usual.items():
            torch.testing.assert_close(other[name], value, rtol=1e-6, atol=1e-9)


def train_rows(forced: bool) -> dict[str, Tensor]:
    model = sharded(make("batch norm"))
    lie_alike = (lambda rows: bool(rows)) if forced else scale_free._lie_alike
    with patch.object(scale_free, "_lie_alike", lie_alike):
        steps_of(model, PathSGD(model, lr=3e-2), (3,), range(5))
    return values(model)


def test_only_parts_of_the_state_are_kept() -> None:
    for own, whole, collectives in in_processes(2, kept):
        assert own <= (whole + 3 * 7) / 2  # the output layer has one row, which lies in one process
        # Gathered for a measurement: six parameters. Of the step: one sum for the dual norm, the
        # direction of the recurrent matrix and the matrix itself for the bounds on growth, where
        # they are looked at.
        assert 7 <= collectives["measured"] <= 9 and 1 <= collectives["between"] <= 3


def kept() -> tuple[int, int, dict[str, int]]:
    model = sharded(make("recurrent"))
    optimizer = PathAdam(model, lr=3e-3, refresh_every=3)
    steps_of(model, optimizer, (5, 2), range(3))
    state = [s for s in optimizer.state.values()]
    own = sum(
        t.numel() for s in state for t in (s.dense_whitening(), s.rule.exp_avg, s.rule.exp_avg_sq)
    )
    used = {}
    for what, step in (("measured", 3), ("between", 4)):
        x, y = (share(t) for t in batch_of(step, (5, 2)))
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        with CommDebugMode() as debug:
            optimizer.step()
        used[what] = debug.get_total_counts()
    return own, 3 * sum(p.numel() for p in model.parameters()), used


def test_an_evaluation_before_a_step_leaves_no_old_weights_behind() -> None:
    """A forward pass leaves the outermost module's parameters gathered; a step moves the shards."""
    for usual, other in zip(
        *(in_processes(2, train_evaluated, evaluated) for evaluated in (False, True))
    ):
        torch.testing.assert_close(other, usual, rtol=0, atol=0)


def train_evaluated(evaluated: bool) -> Tensor:
    model = sharded(make("feed-forward"))
    optimizer = PathAdam(model, lr=3e-3)
    for step in range(4):
        x, y = (share(t) for t in batch_of(step, (3,)))
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        if evaluated:
            with torch.no_grad():
                model(x)
        optimizer.step()
    return model(batch_of(99, (3,))[0]).detach()


def test_quantities_of_a_sharded_model_are_those_of_the_model() -> None:
    x, model = batch_of(0, (5, 2))[0], make("recurrent")
    wanted = quantities(model, x)
    for found in in_processes(2, quantities_sharded):
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=0)


def quantities_sharded() -> list[Tensor]:
    return quantities(sharded(make("recurrent")), batch_of(0, (5, 2))[0])


def quantities(model: nn.Module, x: Tensor) -> list[Tensor]:
    kappa, share_of = pathsgd.kappa(model, x, terms="both"), pathsgd.path_share(model, x)
    rates = [torch.tensor(rate) for rate in pathsgd.growth_rate(model, x).values()]
    return [pathsgd.gamma_sq(model, x).detach(), *kappa.values(), *share_of.values(), *rates]


REFUSED = {
    "balance": lambda m, x: pathsgd.balance(m, x),
    "rescale_nodes": lambda m, x: pathsgd.rescale_nodes(m, x, alpha=2.0),
    "check_invariance": lambda m, x: pathsgd.check_invariance(m, x),
    "path_normalize_grad_": lambda m, x: pathsgd.path_normalize_grad_(m, x),
    "bound_growth_": lambda m, x: bound_growth_(m, x),
    "wrap": lambda m, x: wrap(torch.optim.SGD(m.parameters(), lr=0.1), m),
}


def test_what_writes_to_whole_parameters_is_refused_by_name() -> None:
    (messages,) = in_processes(1, refusals)
    assert all(name in message and "sharded" in message for name, message in messages.items()), (
        messages
    )


def refusals() -> dict[str, str]:
    model, messages = sharded(make("recurrent")), {}
    for name, call in REFUSED.items():
        with pytest.raises(TypeError) as caught:
            call(model, batch_of(0, (5, 2))[0])
        messages[name] = str(caught.value)
    return messages


def test_fsdp1_is_refused_by_name() -> None:
    with pytest.raises(RuntimeError, match=r"FullyShardedDataParallel[\s\S]*fully_shard"):
        in_processes(1, fsdp1)


def fsdp1() -> None:
    PathAdam(FullyShardedDataParallel(make("recurrent"), device_id=torch.device("cpu")))
