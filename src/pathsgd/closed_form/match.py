"""Is this recording a plain recurrent net: [embedding ->] one ReLU RNN layer -> linear output?

Every entry that such a net may move on its way (a transpose, the choice of the last step) is followed by its number:
the layers' arguments then show whether the RNN reads what it should, and which steps the output layer reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pathsgd.rules.base import Nodes
from pathsgd.rules.pointwise import Same
from pathsgd.rules.recurrent import Call
from pathsgd.rules.shape import View
from pathsgd.tape import Recording, Step, Value, interpret


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


def match(recording: Recording) -> PlainNet | None:
    """The plain recurrent net a recording describes, or None when it is anything else."""
    if len(recording.outputs) != 1 or recording.rows != 1:
        return None
    steps = [s for s in recording.steps if not isinstance(s.rule, (View, Same))]
    names = recording.names
    operations = [s.operation for s in steps]
    if operations not in (["rnn_relu", "linear"], ["embedding", "rnn_relu", "linear"]):
        return None
    recurrent, linear = steps[-2:]
    call = Call.parse(*recurrent.args)
    used = [*call.weights, *linear.args[1:], *linear.kwargs.values(), *([steps[0].args[1]] if len(steps) == 3 else [])]
    values = [v for v in used if isinstance(v, Value)]
    roles = [names.get(v) for v in values]
    if call.layers != 1 or call.directions != 1 or call.batch_sizes is not None or isinstance(call.hx, Value):
        return None
    if None in roles or len(set(roles)) != len(roles) or len(values) != len([v for v in used if v is not None]):
        return None
    if isinstance(call.hx, Tensor) and bool(call.hx.any()):
        return None
    total = call.x.shape[1 if call.batch_first else 0]
    every = _every_step(recording, recurrent, linear, total)
    if every is None or not _constant_input(recording, call.x, steps[0] if len(steps) == 3 else None):
        return None
    bias = linear.kwargs.get("bias", linear.args[2] if len(linear.args) > 2 else None)
    return PlainNet(
        w_in=names[call.weights[0]],
        w_rec=names[call.weights[1]],
        biases=tuple(names[w] for w in call.weights[2:]),
        w_out=names[linear.args[1]],
        b_out=None if bias is None else names[bias],
        embedding=names[steps[0].args[1]] if len(steps) == 3 else None,
        steps=total,
        every_step=every,
    )


class _Numbers:
    """A stub node graph that moves integer labels, to see which entries a layer reads."""

    @staticmethod
    def activation(operand: Any) -> Tensor:
        return operand.ids


def _follow(recording: Recording, numbers: dict[Value, Tensor]) -> dict[Value, Tensor]:
    """The numbers of entries wherever they were only moved to."""

    def carry(step: Step, args: Any, kwargs: Any) -> Any:
        # What computes (the layers themselves) ends the trail.
        moves = isinstance(step.rule, (View, Same))
        return step.rule.nodes(_Numbers(), *args, **kwargs) if moves else None

    known = interpret(recording, {value: Nodes(ids) for value, ids in numbers.items()}, carry)
    return {value: nodes.ids for value, nodes in known.items()}


def _constant_input(recording: Recording, x: Value, embedding: Step | None) -> bool:
    """Whether each step of the RNN reads ones, or the embedding's features in their order."""
    if embedding is None:
        ones = {value: torch.zeros(value.shape, dtype=torch.int64) for value in recording.inputs}
        return x in _follow(recording, ones)
    out = embedding.outputs[0]
    assert out is not None
    features = torch.arange(out.shape[-1])
    read = _follow(recording, {out: features.expand(out.shape)}).get(x)
    return read is not None and read.shape[-1:] == features.shape and bool((read == features).all())


def _every_step(recording: Recording, recurrent: Step, linear: Step, total: int) -> bool | None:
    """Whether the output layer reads every step once (True), the last one (False), or anything else (None)."""
    call = Call.parse(*recurrent.args)
    states, last = recurrent.outputs
    assert states is not None and last is not None and linear.outputs[0] is not None
    hidden = states.shape[-1]
    time = torch.arange(total).reshape((1, -1, 1) if call.batch_first else (-1, 1, 1))
    units = torch.arange(hidden)
    numbers = _follow(
        recording,
        {states: (time * hidden + units).expand(states.shape), last: ((total - 1) * hidden + units).expand(last.shape)},
    )
    read = numbers.get(linear.args[0])
    if read is None or read.shape[-1] != hidden or not bool((read % hidden == units).all()):
        return None
    outputs = torch.arange(linear.outputs[0].shape.numel()).reshape(linear.outputs[0].shape)
    kept = _follow(recording, {linear.outputs[0]: outputs}).get(recording.outputs[0])
    if kept is None or kept.reshape(-1).sort().values.tolist() != list(range(outputs.numel())):
        return None  # the model returns a part of what the output layer computed
    steps_read = (read[..., 0] // hidden).reshape(-1).sort().values.tolist()
    if steps_read == [total - 1]:
        return False
    return True if steps_read == list(range(total)) else None
