"""The adding problem's sequences, and the copy task's."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pathsgd_lab.tasks.adding import BLOCK_NUMBERS, AddingTask, FreshStream
from pathsgd_lab.tasks.base import Batch
from pathsgd_lab.tasks.copy_memory import BLANK, DELIMITER, MEMORY, CopyTask


def check_adding(batch: Batch, length: int, markers: str) -> None:
    numbers, marks = batch.inputs.unbind(-1)
    assert numbers.shape[0] == length
    assert ((numbers >= 0) & (numbers <= 1)).all()
    assert ((marks == 0) | (marks == 1)).all()
    assert (marks.sum(0) == 2).all()
    if markers == "halves":
        assert (marks[: length // 2].sum(0) == 1).all()
    torch.testing.assert_close((numbers * marks).sum(0).unsqueeze(-1), batch.targets)


@given(
    length=st.integers(2, 40),
    batch_size=st.integers(1, 9),
    markers=st.sampled_from(["halves", "anywhere"]),
    train_size=st.sampled_from([0, 20]),
    seed=st.integers(0, 100),
)
@settings(max_examples=60)
def test_two_numbers_are_marked_and_their_sum_is_the_target(
    length: int, batch_size: int, markers: str, train_size: int, seed: int
) -> None:
    task = AddingTask(length=length, markers=markers, train_size=train_size)  # type: ignore[arg-type]
    stream = task.prepare().stream(batch_size, seed)
    for _ in range(6):
        check_adding(stream.next(), length, markers)


def test_markers_anywhere_reach_every_pair_of_steps_equally() -> None:
    task = AddingTask(length=4, markers="anywhere", test_size=12_000)
    counts: dict[tuple[int, ...], int] = {}
    for batch in task.prepare().eval_batches("test"):
        for marks in batch.inputs[..., 1].t():
            pair = tuple(marks.nonzero().flatten().tolist())
            counts[pair] = counts.get(pair, 0) + 1
    assert len(counts) == 6
    # 2000 expected, standard deviation 41.
    assert all(abs(count - 2_000) < 200 for count in counts.values())


@given(lengths=st.lists(st.integers(2, 60), min_size=1, max_size=6), draws=st.integers(1, 5))
@settings(max_examples=30)
def test_the_length_can_change_between_any_two_batches_and_survives_a_resume(
    lengths: list[int], draws: int
) -> None:
    data = AddingTask(length=10).prepare()
    stream = data.stream(3, seed=5)
    for length in lengths:
        stream.set_length(length)
        for _ in range(draws):
            check_adding(stream.next(), length, "halves")
    resumed = data.stream(3, seed=5)
    resumed.load_state_dict(stream.state_dict())
    assert resumed.epoch == stream.epoch == len(lengths) * draws
    assert torch.equal(resumed.next().inputs, stream.next().inputs)


def test_fresh_batches_never_repeat() -> None:
    stream = AddingTask(length=8).prepare().stream(2, seed=0)
    sums = [stream.next().inputs[..., 0].double().sum().item() for _ in range(500)]
    assert len(set(sums)) == 500


def test_blocks_grow_to_their_full_size_and_start_small_after_a_change_of_length() -> None:
    stream = FreshStream(AddingTask(length=100), batch_size=16, seed=0)
    for _ in range(1_000):
        stream.next()
    assert stream.state_dict()["count"] == BLOCK_NUMBERS // 1_600
    stream.set_length(50)
    assert stream.state_dict()["count"] == 1
    position = stream.state_dict()
    stream.set_length(50)
    assert stream.state_dict() == position, "the same length again is no change"


def test_a_fixed_set_is_the_same_for_every_seed_and_disjoint_from_the_test_set() -> None:
    task = AddingTask(length=6, train_size=40, test_size=40)

    def numbers(batches: list[Batch]) -> set[float]:
        return {value for batch in batches for value in batch.inputs[0, :, 0].tolist()}

    data = task.prepare()
    streams = [task.prepare().stream(10, seed) for seed in (0, 1)]
    epochs = [numbers([stream.next() for _ in range(4)]) for stream in streams]
    assert epochs[0] == epochs[1] == numbers(list(data.eval_batches("train")))
    assert len(epochs[0]) == 40
    assert not epochs[0] & numbers(list(data.eval_batches("test")))


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 2 steps, got length=1"):
        AddingTask(length=1)
    with pytest.raises(ValueError, match="cannot be negative"):
        AddingTask(test_size=-1)
    with pytest.raises(ValueError, match="at least 2 steps"):
        AddingTask().prepare().stream(1, 0).set_length(1)
    with pytest.raises(ValueError, match="at least 1"):
        AddingTask().prepare().stream(0, 0)
    with pytest.raises(ValueError, match="one length only; remove the length curriculum"):
        AddingTask(train_size=10).prepare().stream(5, 0).set_length(50)


@given(lag=st.integers(1, 30), batch_size=st.integers(1, 5), seed=st.integers(0, 50))
def test_copy_asks_for_the_first_ten_symbols_after_the_delimiter(
    lag: int, batch_size: int, seed: int
) -> None:
    inputs, targets, _ = CopyTask(lag=lag).prepare().stream(batch_size, seed).next()
    assert inputs.shape == targets.shape == (lag + 20, batch_size)
    assert (inputs[:MEMORY] < BLANK).all()
    assert (inputs == DELIMITER).sum(0).eq(1).all() and (
        inputs[MEMORY + lag - 1] == DELIMITER
    ).all()
    assert (inputs[MEMORY : MEMORY + lag - 1] == BLANK).all() and (inputs[-MEMORY:] == BLANK).all()
    assert (targets[:-MEMORY] == BLANK).all()
    assert torch.equal(targets[-MEMORY:], inputs[:MEMORY])


def test_copy_without_memory_has_the_published_baseline_loss() -> None:
    task = CopyTask(lag=30)
    _, targets, _ = task.prepare().stream(5, 0).next()
    outputs = torch.full((50, 5, 9), -50.0)
    outputs[:-MEMORY, :, BLANK] = 50.0
    outputs[-MEMORY:, :, :BLANK] = 0.0
    assert task.loss(outputs, targets).item() == pytest.approx(
        10.0 * math.log(8.0) / 50.0, rel=1e-5
    )


def test_copy_counts_only_the_symbols_to_repeat() -> None:
    task = CopyTask(lag=3)
    _, targets, _ = task.prepare().stream(2, 0).next()
    outputs = torch.nn.functional.one_hot(targets, 9).float()
    assert task.tally(outputs, targets) == (0.0, 20)
    outputs[:-MEMORY] = 0.0  # wrong during the pause: not counted
    outputs[-1] = outputs[-1].roll(1, dims=-1)  # wrong in the last answer
    assert task.tally(outputs, targets) == (2.0, 20)


def test_copy_follows_a_curriculum_of_lengths() -> None:
    stream = CopyTask(lag=50).prepare().stream(2, 0)
    stream.set_length(25)
    assert stream.next().inputs.shape == (25, 2)
    with pytest.raises(ValueError, match="more than 20 steps"):
        stream.set_length(20)
    with pytest.raises(ValueError, match="lag of at least 1"):
        CopyTask(lag=0)
