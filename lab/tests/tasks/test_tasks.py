"""What every task promises, checked for each of them."""

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from pathsgd_lab.tasks import (
    TASKS,
    AddingTask,
    CopyTask,
    DecisionTask,
    MnistAutoencoderTask,
    PermutedMnistTask,
    PtbCharTask,
    PtbWordTask,
    SequentialMnistTask,
    Task,
    TaskData,
    Text8Task,
)
from pathsgd_lab.tasks.base import detach_state
from pathsgd_lab.tasks.sampling import ShuffledIndices, generator_for

SMALL: dict[str, Task] = {
    "adding": AddingTask(length=12, valid_size=200, test_size=4_000),
    "adding-fixed": AddingTask(length=12, train_size=50, valid_size=20, test_size=30),
    "copy": CopyTask(lag=5, valid_size=20, test_size=400),
    "smnist": SequentialMnistTask(subsample=7, valid_size=10),
    "psmnist": PermutedMnistTask(subsample=4, valid_size=10),
    "ptb_word": PtbWordTask(window=6, vocabulary=12),
    "ptb_char": PtbCharTask(window=8),
    "text8": Text8Task(window=9, limit=3_000),
    "mnist_autoencoder": MnistAutoencoderTask(subsample=7, valid_size=10),
    "decision": DecisionTask(length=9, valid_size=200, test_size=4_000),
}


@pytest.fixture(scope="module")
def data(tiny_data: Path) -> dict[str, TaskData]:
    return {name: task.prepare(tiny_data) for name, task in SMALL.items()}


def test_every_task_is_listed_under_its_own_name() -> None:
    assert {name: task.name for name, task in TASKS.items()} == {name: name for name in TASKS}
    assert {task.name for task in SMALL.values()} == set(TASKS)


@pytest.mark.parametrize("name", SMALL)
def test_batches_have_the_declared_shapes(name: str, data: dict[str, TaskData]) -> None:
    task = SMALL[name]
    inputs, targets, carry = data[name].stream(4, seed=0).next()
    assert carry is False
    if task.tokens:
        assert inputs.shape == (task.length, 4) and inputs.dtype == torch.int64
        assert inputs.min() >= 0 and inputs.max() < task.input_size
    else:
        assert inputs.shape == (task.length, 4, task.input_size) and inputs.dtype == torch.float32
    assert (
        task.example_inputs(4).shape == inputs.shape
        and task.example_inputs(4).dtype == inputs.dtype
    )
    outputs = torch.randn(
        *((task.length, 4) if task.every_step else (4,)), task.output_size, requires_grad=True
    )
    if task.metric == "mse":
        assert targets.shape == outputs.shape
    else:
        assert targets.shape == outputs.shape[:-1] and targets.dtype == torch.int64
        assert targets.min() >= 0 and targets.max() < task.output_size
    task.loss(outputs, targets).backward()
    assert outputs.grad is not None and outputs.grad.isfinite().all() and outputs.grad.any()


@pytest.mark.parametrize("name", SMALL)
@given(seed=st.integers(0, 2**31), before=st.integers(0, 40))
@settings(max_examples=10)
def test_a_stream_continues_bit_for_bit_from_its_state(
    name: str, seed: int, before: int, data: dict[str, TaskData]
) -> None:
    stream = data[name].stream(4, seed)
    for _ in range(before):
        stream.next()
    state = stream.state_dict()
    assert all(type(value) is int for value in state.values())
    resumed = data[name].stream(4, seed)
    resumed.load_state_dict(state)
    assert resumed.epoch == stream.epoch
    for _ in range(12):
        expected, found = stream.next(), resumed.next()
        assert torch.equal(expected.inputs, found.inputs)
        assert torch.equal(expected.targets, found.targets)
        assert expected.carry == found.carry


@pytest.mark.parametrize("name", SMALL)
def test_the_seed_decides_the_order_except_in_text(name: str, data: dict[str, TaskData]) -> None:
    def first_inputs(seed: int) -> Tensor:
        return data[name].stream(4, seed).next().inputs

    assert torch.equal(first_inputs(1), first_inputs(1))
    assert torch.equal(first_inputs(1), first_inputs(2)) == (
        SMALL[name].data_set in ("ptb", "text8")
    )


class Constant(nn.Module):
    """Says the same whatever it sees."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.every_step = task.every_step
        # The mean for regression; for classes the first one wins by a hair, text sees a uniform
        # distribution.
        self.answer = torch.full((task.output_size,), task.target_mean)
        self.answer[0] += 1e-6 if task.metric == "error_percent" else 0.0

    def forward(self, inputs: Tensor, state: object = None) -> tuple[Tensor, tuple[Tensor, ...]]:
        shape = inputs.shape[:2] if self.every_step else inputs.shape[1:2]
        return self.answer.expand(*shape, -1), (torch.zeros(shape[-1], 1),)


# The autoencoder's is that of the real digits' mean image.
@pytest.mark.parametrize("name", [name for name in SMALL if name != "mnist_autoencoder"])
def test_a_constant_answer_has_the_chance_metric(name: str, data: dict[str, TaskData]) -> None:
    task = SMALL[name]
    model = Constant(task).train()
    # Text and balanced classes: exact. Random targets: three standard errors of the test set.
    tolerance = {"adding": 0.03, "adding-fixed": 0.6, "copy": 0.03, "decision": 0.05}.get(
        name, 1e-5
    )
    assert data[name].evaluate(model, "test") == pytest.approx(task.chance, rel=tolerance)
    assert model.training, "evaluation must give the model back in the mode it was in"


@pytest.mark.parametrize("name", SMALL)
def test_evaluation_does_not_depend_on_the_batch_size_for_a_memoryless_model(
    name: str, data: dict[str, TaskData]
) -> None:
    model = Constant(SMALL[name])
    one, other = (data[name].evaluate(model, "valid", batch_size=size) for size in (3, 7))
    assert one == pytest.approx(other, rel=1e-6)


@pytest.mark.parametrize("name", SMALL)
def test_an_unknown_split_is_named(name: str, data: dict[str, TaskData]) -> None:
    with pytest.raises(ValueError, match="has no split 'dev'; choose one of"):
        next(iter(data[name].eval_batches("dev")))  # type: ignore[arg-type]


def test_evaluation_stops_at_the_limit(data: dict[str, TaskData]) -> None:
    class Counting(Constant):
        calls = 0

        def forward(
            self, inputs: Tensor, state: object = None
        ) -> tuple[Tensor, tuple[Tensor, ...]]:
            self.calls += 1
            return super().forward(inputs, state)

    model = Counting(SMALL["adding"])
    data["adding"].evaluate(model, "test", batch_size=10, limit=3)
    assert model.calls == 3


def test_metrics_of_a_mean_error() -> None:
    assert SMALL["adding"].metric_of_mean(0.25) == 0.25
    assert SMALL["smnist"].metric_of_mean(0.25) == 25.0
    assert SMALL["ptb_word"].metric_of_mean(math.log(50.0)) == pytest.approx(50.0)
    assert SMALL["ptb_char"].metric_of_mean(math.log(8.0)) == pytest.approx(3.0)
    assert SMALL["ptb_word"].metric_of_mean(1e6) == math.inf


def test_a_detached_state_has_the_same_values_and_no_graph() -> None:
    state = (torch.ones(2, 3, requires_grad=True) * 2, torch.zeros(2, 3, requires_grad=True).exp())
    detached = detach_state(state)
    assert all(
        torch.equal(a, b) and not b.requires_grad for a, b in zip(state, detached, strict=True)
    )


@given(count=st.integers(1, 60), data_=st.data(), seed=st.integers(0, 1000))
def test_shuffled_indices_visit_everything_once_an_epoch(
    count: int, data_: st.DataObject, seed: int
) -> None:
    batch_size = data_.draw(st.integers(1, count))
    indices = ShuffledIndices(count, batch_size, seed)
    per_epoch = count // batch_size
    epochs = [torch.cat([indices.next() for _ in range(per_epoch)]).tolist() for _ in range(2)]
    assert indices.epoch == 2.0
    for epoch in epochs:
        assert len(set(epoch)) == len(epoch) == per_epoch * batch_size
    if batch_size * per_epoch > 8:
        assert epochs[0] != epochs[1], "every epoch has an order of its own"


def test_a_batch_larger_than_the_set_is_refused() -> None:
    with pytest.raises(ValueError, match="batch size 5 does not fit a training set of 4"):
        ShuffledIndices(4, 5, seed=0)


def test_generators_of_neighbouring_keys_are_unrelated() -> None:
    draws = torch.stack(
        [torch.rand(400, generator=generator_for(seed, k)) for seed in range(5) for k in range(5)]
    )
    correlations = torch.corrcoef(draws) - torch.eye(25)
    assert correlations.abs().max() < 0.25
