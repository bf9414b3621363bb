"""Parameters that are updated together: one pass of the kernel over all of them, however many there are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from pathsgd._native import Update


@dataclass(eq=False)
class Part:
    """Parameters of one group that have gradients, with one dtype, on one device, and their states."""

    group: dict[str, Any]
    names: list[str]
    params: list[Tensor]
    states: list[dict[str, Any]]
    moments: dict[str, list[Tensor]] = field(default_factory=dict)
    """States that hold moments, by their names, as the last step left them (moves.py)."""
    update: Update | None = None
    """The passes of the last step; they serve again while they work on the same tensors (moves.py)."""
    worked_on: list[Tensor] = field(default_factory=list)
    flat: Any = None
    """The same for a step on another device (on_device.py)."""

    def gradients(self) -> list[Tensor]:
        """The gradients of all parameters; each of them has one."""
        return [p.grad for p in self.params]  # type: ignore[misc]


class Parts:
    """The parts of an optimiser's parameters, put together anew when others have gradients than in the last step."""

    def __init__(self, alike: tuple[str, ...]) -> None:
        self._alike = alike
        self._present: list[list[bool]] = []
        self._parts: list[Part] = []

    def with_gradients(self, groups: list[dict[str, Any]], names: dict[int, str], state: Any) -> list[Part]:
        """The parameters that have gradients. names: by the parameters' ids; state: the optimiser's."""
        present = [[p.grad is not None for p in group["params"]] for group in groups]
        if present != self._present or any(state.get(part.params[0]) is not part.states[0] for part in self._parts):
            self._parts = [part for group in groups for part in _put_together(group, names, state, self._alike)]
            self._present = present
        return self._parts


def _put_together(group: dict[str, Any], names: dict[int, str], state: Any, alike: Iterable[str]) -> list[Part]:
    """The parameters of a group that have gradients, together where dtype, device and the states `alike` agree."""
    together: dict[Any, list[Tensor]] = {}
    for p in group["params"]:
        if p.grad is not None:
            key = p.dtype, p.device, *(state[p].get(name, 0) for name in alike)
            together.setdefault(key, []).append(p)
    return [Part(group, [names[id(p)] for p in ps], ps, [state[p] for p in ps]) for ps in together.values()]
