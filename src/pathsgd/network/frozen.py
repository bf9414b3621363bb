"""The part of a squared network that cannot change between two measurements.

Of a backbone that is frozen only the last units matter to a head that learns: how much flows
through them. So path sums are kept up to there, and derivatives are taken in what moves and in what
enters the units that it joins, no more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pathsgd.arithmetic.scaled import Scaled
from pathsgd.distributed.spread import is_sharded
from pathsgd.network.node_spaces import NodeSpaces
from pathsgd.network.rules.base import FIXED, examples
from pathsgd.network.squared import Evaluation
from pathsgd.network.tape import Recording, Step, Value, leaves


class Frozen:
    """A recording in two parts: the steps before all parameters that can change, and the others.

    moving: the parameters that can move.
    wanted: those whose kappa a step of them needs: they, and all that enter the units they join.
    live: the recording from the first of those on.
    """

    def __init__(self, recording: Recording, spaces: NodeSpaces, moving: frozenset[str]) -> None:
        self.wanted = _wanted(spaces, moving)
        changing: set[Value] = {
            v for name, v in recording.parameters.items() if name in self.wanted
        }
        front: list[Step] = []
        live: list[Step] = []
        for step in recording.steps:
            depends = any(operand in changing for operand in step.operands)
            changing.update(v for v in step.outputs if depends and v is not None)
            (live if depends else front).append(step)
        made = {v for step in front for v in step.outputs if v is not None}
        read = {v for step in live for v in step.operands} | set(recording.outputs)
        self._borders = [v for v in made if v in read]
        self.live = replace(
            recording, steps=live, parameters=_used(recording, read), rows=examples(recording),
        )  # fmt: skip
        self._front = replace(
            recording, steps=front, outputs=self._borders,
            parameters=_used(recording, {v for step in front for v in step.operands}),
        )  # fmt: skip
        self._state: Any = None
        self._sums: dict[Value, Scaled] = {}

    def sums(self, parameters: Mapping[str, Tensor]) -> dict[Value, Scaled]:
        """Path sums of what the live part reads; made again if a frozen number has changed."""
        if not self._borders:
            return {}
        state = self._fingerprint(parameters)
        if state != self._state:
            self._sums = Evaluation(
                self._front, parameters, derivative=None, keep=self._borders
            ).kept
            self._state = state
        return self._sums

    def _fingerprint(self, parameters: Mapping[str, Tensor]) -> Any:
        if any(is_sharded(parameters[name]) for name in self._front.parameters):
            return (
                object()
            )  # to look at the numbers, they would have to be gathered, as to use them
        frozen = [parameters[name].detach() for name in self._front.parameters]
        read = [t for s in self._front.steps for t in leaves(s.rule.constants(*s.args, **s.kwargs))]
        constants = [
            (id(t), t._version) for t in read if isinstance(t, Tensor) and not t.is_inference()
        ]
        # What is written through `.data` leaves no trace but the numbers themselves.
        lengths = torch.stack(torch._foreach_norm(frozen)).tolist() if frozen else []
        return (
            [(id(parameters[n]), parameters[n]._version) for n in self._front.parameters],
            lengths,
            constants,
        )


def _used(recording: Recording, values: set[Value]) -> dict[str, Value]:
    return {name: value for name, value in recording.parameters.items() if value in values}


def _wanted(spaces: NodeSpaces, moving: frozenset[str]) -> frozenset[str]:
    joined: set[int] = set()
    for edges in (spaces.edges[name] for name in moving):
        joined |= {*edges.target.unique().tolist(), *edges.source.unique().tolist()}
    joined.discard(FIXED)
    entering = {
        n for n, e in spaces.edges.items() if not joined.isdisjoint(e.target.unique().tolist())
    }
    return moving | entering
