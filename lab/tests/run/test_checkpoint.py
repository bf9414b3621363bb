"""Checkpoints: trees are restored bit for bit; damaged files are skipped for the one before."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pathsgd_lab.run import checkpoint

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool]


def tensor(dtype: torch.dtype, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    return (100 * torch.randn(shape, generator=torch.Generator().manual_seed(seed))).to(dtype)


TENSORS = st.builds(
    tensor,
    st.sampled_from(DTYPES),
    st.lists(st.integers(0, 3), max_size=3).map(tuple),
    st.integers(0, 99),
)
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
)
TREES = st.recursive(
    SCALARS | TENSORS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.integers() | st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=12,
)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


@given(TREES)
@settings(max_examples=60)
def test_any_tree_comes_back(tmp_path_factory: pytest.TempPathFactory, tree: Any) -> None:
    directory = tmp_path_factory.mktemp("run")
    assert same(checkpoint.read(checkpoint.save(directory, 3, tree)), tree)


def test_numbers_that_json_lacks_come_back(tmp_path: Path) -> None:
    tree = checkpoint.read(
        checkpoint.save(tmp_path, 0, [float("inf"), float("-inf"), float("nan")])
    )
    assert tree[:2] == [float("inf"), float("-inf")] and tree[2] != tree[2]


def test_optimiser_state_comes_back_through_the_optimiser(tmp_path: Path) -> None:
    layer = torch.nn.Linear(3, 2)
    optimiser = torch.optim.Adam(layer.parameters())
    layer(torch.ones(1, 3)).sum().backward()
    optimiser.step()
    state = checkpoint.read(checkpoint.save(tmp_path, 1, optimiser.state_dict()))
    assert same(state, optimiser.state_dict())


def test_tied_tensors_and_views_are_saved(tmp_path: Path) -> None:
    base = torch.arange(6.0).view(2, 3)
    tree = checkpoint.read(checkpoint.save(tmp_path, 1, {"a": base, "b": base, "t": base.t()}))
    assert torch.equal(tree["a"], base) and torch.equal(tree["t"], base.t())


def test_two_are_kept(tmp_path: Path) -> None:
    for step in (1, 20, 3):
        checkpoint.save(tmp_path, step, {"step": step})
    assert [p.name for p in sorted(tmp_path.iterdir())] == [
        "checkpoint-0000000003.safetensors",
        "checkpoint-0000000020.safetensors",
    ]


def test_objects_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="tensors, numbers, strings"):
        checkpoint.save(tmp_path, 1, {"x": object()})
    assert list(tmp_path.iterdir()) == []


def saved_twice(directory: Path) -> bytes:
    checkpoint.save(directory, 1, {"step": 1, "p": torch.ones(50)})
    return checkpoint.save(directory, 2, {"step": 2, "p": torch.zeros(50)}).read_bytes()


@given(data=st.data())
@settings(max_examples=60)
def test_any_damage_to_the_newest_is_noticed(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    directory = tmp_path_factory.mktemp("run")
    content = saved_twice(directory)
    newest = checkpoint.paths(directory)[0]
    if data.draw(st.booleans(), "truncate"):
        newest.write_bytes(content[: data.draw(st.integers(0, len(content) - 1), "length")])
    else:
        position = data.draw(st.integers(0, len(content) - 1), "position")
        flipped = bytearray(content)
        flipped[position] ^= 1 << data.draw(st.integers(0, 7), "bit")
        newest.write_bytes(bytes(flipped))
    loaded = checkpoint.load_newest(directory)
    # A flipped bit in the header's padding or key order changes nothing that is read; anything else
    # must be noticed.
    assert loaded["step"] == 1 or same(loaded, {"step": 2, "p": torch.zeros(50)})


def test_previous_is_used_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    content = saved_twice(tmp_path)
    checkpoint.paths(tmp_path)[0].write_bytes(content[:-1])
    with caplog.at_level(logging.WARNING):
        assert checkpoint.load_newest(tmp_path)["step"] == 1
    assert "checkpoint-0000000002" in caplog.text and "going back" in caplog.text


def test_no_checkpoint_is_no_error_and_only_bad_ones_are(tmp_path: Path) -> None:
    assert checkpoint.load_newest(tmp_path) is None
    (tmp_path / "checkpoint-0000000005.safetensors").write_bytes(b"")
    with pytest.raises(checkpoint.CheckpointError, match=r"no checkpoint in .* can be read"):
        checkpoint.load_newest(tmp_path)
