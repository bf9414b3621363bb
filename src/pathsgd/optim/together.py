"""Parameters that are updated together: one pass of the kernel over all of them, however many there are."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from pathsgd._native.update import Operands, Update


class Together:
    """Parameters of one group that have gradients, with one dtype, on one device, and their states."""

    def __init__(self, group: dict[str, Any], names: list[str], params: list[Tensor], states: list[dict[str, Any]]):
        self.group, self.names, self.params, self.states = group, names, params, states
        self._moments: dict[str, list[Tensor]] = {}
        self._update: Update | None = None
        self._used: list[Tensor] = []

    def moments(self, key: str) -> list[Tensor]:
        """State `key` of every parameter, in its shape; zero where a parameter has none yet."""
        known = self._moments.get(key)
        if known is not None and self.states[0].get(key) is known[0]:
            return known
        # Copies: a state that was loaded may still be another optimiser's.
        found = [
            s[key].clone(memory_format=torch.contiguous_format) if key in s else torch.zeros_like(p)
            for p, s in zip(self.params, self.states)
        ]
        for state, moment in zip(self.states, found):
            state[key] = moment
        self._moments[key] = found
        return found

    def gradients(self) -> list[Tensor]:
        return [p.grad for p in self.params]  # type: ignore[misc]

    def update(self, keys: Sequence[str]) -> Update:
        """The passes of this step, with the states `keys` as first and second moments."""
        whitenings = [state["whitening"] for state in self.states]
        moments = [self.moments(key) for key in keys]
        used = [*whitenings, *(m[0] for m in moments)]
        # The operands of the last step serve again while they are the same tensors (not only equal ones).
        if self._update is None or len(used) != len(self._used) or not all(map(operator.is_, used, self._used)):
            self._update, self._used = Update(Operands(self.params, self.gradients(), whitenings, *moments)), used
        else:
            self._update.renew(self.gradients())
        return self._update


def put_together(group: dict[str, Any], names: dict[int, str], state: Any, alike: Iterable[str]) -> list[Together]:
    """The parameters of a group that have gradients, together where dtype, device and the states `alike` agree."""
    found: dict[Any, list[Tensor]] = {}
    for p in group["params"]:
        if p.grad is not None:
            key = p.dtype, p.device, *(state[p].get(name, 0) for name in alike)
            found.setdefault(key, []).append(p)
    return [Together(group, [names[id(p)] for p in ps], ps, [state[p] for p in ps]) for ps in found.values()]
