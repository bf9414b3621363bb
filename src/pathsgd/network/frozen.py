"""The part of a squared network that cannot change between two measurements.

A head that learns on a frozen backbone depends on the path sums of the backbone's last units only.
These are kept, and derivatives are taken in the parameters that move and in those that lead to the
units which these join.
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

    moving: the parameters that can change.
    wanted: the parameters whose kappa a step needs: those, and all that lead to units they join.
    live: the recording from the first of these on.
    """

    def __init__(self, recording: Recording, spaces: NodeSpaces, moving: frozenset[str]) -> None:
        self.wanted = _wanted(spaces, moving)
        changing = {v for name, v in recording.parameters.items() if name in self.wanted}
        front: list[Step] = []
        live: list[Step] = []
        for step in recording.steps:
            depends = any(operand in changing for operand in step.operands)
            changing.update(step.made if depends else ())
            (live if depends else front).append(step)
        made = {v for step in front for v in step.made}
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
        """Path sums of what the live part reads; computed again if a frozen number has changed."""
        if not self._borders:
            return {}
        state = self._fingerprint(parameters)
        if state != self._state:
            front = Evaluation(self._front, parameters, derivative=None, keep=self._borders)
            self._sums, self._state = front.kept, state
        return self._sums

    def _fingerprint(self, parameters: Mapping[str, Tensor]) -> Any:
        if any(is_sharded(parameters[name]) for name in self._front.parameters):
            return object()  # always new: reading the numbers costs as much as using them
        frozen = [parameters[name].detach() for name in self._front.parameters]
        read = [t for s in self._front.steps for t in leaves(s.rule.constants(*s.args, **s.kwargs))]
        constants = [
            (id(t), t._version) for t in read if isinstance(t, Tensor) and not t.is_inference()
        ]
        # Writing through `.data` changes no version, only the numbers.
        lengths = torch.stack(torch._foreach_norm(frozen)).tolist() if frozen else []
        versions = [(id(parameters[n]), parameters[n]._version) for n in self._front.parameters]
        return versions, lengths, constants


def _used(recording: Recording, values: set[Value]) -> dict[str, Value]:
    return {name: value for name, value in recording.parameters.items() if value in values}


def _wanted(spaces: NodeSpaces, moving: frozenset[str]) -> frozenset[str]:
    joined: set[int] = set()
    for edges in (spaces.edges[name] for name in moving):
        joined |= {*edges.target.unique().tolist(), *edges.source.unique().tolist()}
    joined.discard(FIXED)
    targets = {n: e.target.unique().tolist() for n, e in spaces.edges.items()}
    return moving | {n for n, nodes in targets.items() if not joined.isdisjoint(nodes)}
