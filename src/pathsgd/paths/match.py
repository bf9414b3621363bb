"""Plain recurrent nets: [embedding ->] ReLU RNN layers -> linear output.

Every entry that such a net may move on its way (a transpose, the choice of the last step) is
followed by its number: the layers' arguments then show whether the RNN reads what it should, and
which steps the output layer reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pathsgd.network.rules.base import Nodes
from pathsgd.network.rules.pointwise import Same
from pathsgd.network.rules.recurrent import Call
from pathsgd.network.rules.shape import Join, View
from pathsgd.network.tape import Recording, Step, Value, interpret


@dataclass(frozen=True)
class PlainNet:
    """The parameters' names by role; absent ones are None or empty."""

    w_in: str
    w_rec: str
    biases: tuple[str, ...]
    w_out: str
    b_out: str | None
    embedding: str | None
    steps: int
    every_step: bool


@dataclass(frozen=True)
class Cell:
    """The parameters' names of one direction of one layer."""

    w_in: str
    w_rec: str
    biases: tuple[str, ...]


@dataclass(frozen=True)
class StackNet:
    """[embedding ->] RNN layers, one or two directions -> linear output; absent parts are None."""

    layers: tuple[tuple[Cell, ...], ...]
    """From the lowest; of each, the forward direction and, if there is one, the backward one."""
    w_out: str
    b_out: str | None
    embedding: str | None
    steps: int
    reads: tuple[int | None, ...]
    """For each direction of the highest layer, the step that is read; None for every step."""


def match(recording: Recording) -> PlainNet | StackNet | None:
    """The recurrent net that a recording describes, or None when it is anything else."""
    if len(recording.outputs) != 1 or recording.rows != 1:
        return None
    steps = [s for s in recording.steps if not isinstance(s.rule, _MOVES)]
    if [s.operation for s in steps] not in (_LAYER_AND_OUTPUT, ["embedding", *_LAYER_AND_OUTPUT]):
        return None
    *lookup, recurrent, linear = steps
    call, names = Call.parse(*recurrent.args), recording.names
    tables = [step.args[1] for step in lookup]
    used = [*call.weights, *linear.args[1:], *linear.kwargs.values(), *tables]
    roles = [names.get(v) for v in used if v is not None]
    if None in roles or len(set(roles)) != len(roles) or call.batch_sizes is not None:
        return None  # a weight that is no parameter, or is used twice
    if isinstance(call.hx, Value) or (isinstance(call.hx, Tensor) and bool(call.hx.any())):
        return None
    reads = _reads(recording, recurrent, linear)
    if reads is None or not _constant_input(recording, call.x, lookup[0] if lookup else None):
        return None
    bias = linear.kwargs.get("bias", linear.args[2] if len(linear.args) > 2 else None)
    w_out, b_out = names[linear.args[1]], None if bias is None else names[bias]
    ends = (w_out, b_out, names[tables[0]] if tables else None, call.steps)
    layers = tuple(
        tuple(_named(names, call.cell(layer, direction)) for direction in range(call.directions))
        for layer in range(call.layers)
    )
    if len(layers) == len(layers[0]) == 1 and reads[0] in (None, call.steps - 1):
        ((cell,),) = layers
        return PlainNet(cell.w_in, cell.w_rec, cell.biases, *ends, every_step=reads[0] is None)
    return StackNet(layers, *ends, reads)


def _named(names: dict[Value, str], cell: list[Value]) -> Cell:
    return Cell(names[cell[0]], names[cell[1]], tuple(names[w] for w in cell[2:]))


_LAYER_AND_OUTPUT = ["rnn_relu", "linear"]
_MOVES = (View, Same, Join)
"""Rules that move entries and compute nothing."""


class _Numbers:
    """A stub node graph that moves integer labels, to see which entries a layer reads."""

    @staticmethod
    def activation(operand: Any) -> Tensor:
        return operand.ids

    @staticmethod
    def alike(*operands: Any) -> tuple[list[Tensor], bool]:
        """The labels of what lies side by side; a constant has none."""
        return [o.ids if isinstance(o, Nodes) else torch.full(o.shape, -1) for o in operands], False


def _follow(recording: Recording, numbers: dict[Value, Tensor]) -> dict[Value, Tensor]:
    """The numbers of entries wherever they were only moved to."""

    def carry(step: Step, args: Any, kwargs: Any) -> Any:
        # What computes (the layers themselves) ends the trail.
        moves = isinstance(step.rule, _MOVES)
        return step.rule.nodes(_Numbers(), *args, **kwargs) if moves else None

    known = interpret(recording, {value: Nodes(ids) for value, ids in numbers.items()}, carry)
    return {value: nodes.ids for value, nodes in known.items()}


def _constant_input(recording: Recording, x: Value, embedding: Step | None) -> bool:
    """Whether each step of the RNN reads ones, or the embedding's features in their order."""
    if embedding is None:
        ones = {value: torch.zeros(value.shape, dtype=torch.int64) for value in recording.inputs}
        read = _follow(recording, ones).get(x)
        return read is not None and bool((read == 0).all())
    out = embedding.outputs[0]
    assert out is not None
    features = torch.arange(out.shape[-1])
    read = _follow(recording, {out: features.expand(out.shape)}).get(x)
    return read is not None and read.shape[-1:] == features.shape and bool((read == features).all())


def _reads(recording: Recording, recurrent: Step, linear: Step) -> tuple[int | None, ...] | None:
    """The step of each direction that is read, None for every step; None for anything else."""
    call = Call.parse(*recurrent.args)
    states, last = recurrent.outputs
    assert states is not None and last is not None and linear.outputs[0] is not None
    width, total = states.shape[-1], call.steps
    units = torch.arange(width)
    time = torch.arange(total).reshape((1, -1, 1) if call.batch_first else (-1, 1, 1))
    # Final states: of each direction of the highest layer, where it ends; the others are nothing
    # that can be followed.
    ends = torch.tensor([total - 1, 0])[: call.directions, None] * width
    ends = ends + units.view(call.directions, -1)
    lower = torch.full((last.shape[0] - call.directions, ends.shape[1]), -1)
    final = torch.cat([lower, ends])[:, None].expand(last.shape)
    every = (time * width + units).expand(states.shape)
    numbers = _follow(recording, {states: every, last: final})
    read = numbers.get(linear.args[0])
    if read is None or read.shape[-1] != width or bool((read < 0).any()):
        return None
    if not bool((read % width == units).all()):
        return None
    outputs = torch.arange(linear.outputs[0].shape.numel()).reshape(linear.outputs[0].shape)
    kept = _follow(recording, {linear.outputs[0]: outputs}).get(recording.outputs[0])
    if kept is None or kept.reshape(-1).sort().values.tolist() != list(range(outputs.numel())):
        return None  # the model returns a part of what the output layer computed
    at = (read // width).reshape(-1, call.directions, width // call.directions)
    if not bool((at == at[..., :1]).all()):
        return None  # units of one direction at different steps
    at = at[..., 0].sort(0).values
    if len(at) == 1:
        return tuple(at[0].tolist())
    is_every_step = len(at) == total and bool((at.t() == torch.arange(total)).all())
    return (None,) * call.directions if is_every_step else None
