"""Parameters that are updated together: one pass of the kernel over all of them, however many there are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from pathsgd.distributed.spread import Spread, own_like, own_part, spread_of
from pathsgd.kernels.update import Update


@dataclass(eq=False)
class Part:
    """Parameters of one group that have gradients, with one dtype, on one device, and their states."""

    group: dict[str, Any]
    names: list[str]
    owners: list[Tensor]
    """The parameters as the model has them."""
    states: list[dict[str, Any]]
    spread: Spread | None = None
    """How they are spread over processes; None where this process has all of them."""
    params: list[Tensor] = field(default_factory=list)
    """What this process holds of the parameters: usually the parameters themselves."""
    moments: dict[str, list[Tensor]] = field(default_factory=dict)
    """States that hold moments, by their names, as the last step left them (moves.py)."""
    update: Update | None = None
    """The passes of the last step; they serve again while they work on the same tensors (moves.py)."""
    worked_on: list[Tensor | None] = field(default_factory=list)
    put: dict[str, tuple[Any, Tensor, Tensor | None]] = field(default_factory=dict)
    """Of each parameter, the whitening that was measured, and rows and columns as its state has them (refresh.py)."""
    flat: Any = None
    """The same for a step on another device (on_device.py)."""

    def __post_init__(self) -> None:
        self.find_own()

    def find_own(self) -> None:
        """Look again where this process's parts of the parameters lie."""
        self.params[:] = self.owners if self.spread is None else map(own_part, self.owners)

    def gradients(self) -> list[Tensor]:
        """The gradients of what this process holds; each parameter has one."""
        gradients: list[Tensor] = [p.grad for p in self.owners]  # type: ignore[misc]
        return gradients if self.spread is None else list(map(own_like, self.owners, gradients))

    def own(self, whole: Tensor) -> Tensor:
        """This process's part of a tensor that has the shape of a parameter; the tensor itself if nothing is spread."""
        return whole if self.spread is None else self.spread.own(whole)

    def whole(self, own: Tensor, index: int) -> Tensor:
        """The tensor of which every process has a part, like the parameter `index`; itself if nothing is spread."""
        if self.spread is None:
            return own
        return self.spread.joined(own, self.owners[index]).full_tensor()  # type: ignore[no-any-return]


def whitening_of(state: Mapping[str, Any]) -> Tensor:
    """1/sqrt(K) of a parameter as a tensor of its shape.

    A state keeps an outer product as its rows, `whitening`, and its columns, `whitening_columns`.
    """
    rows, columns = state["whitening"], state.get("whitening_columns")
    return rows if columns is None else rows * columns


class Parts:
    """The parts of an optimiser's parameters, put together anew when others have gradients than in the last step."""

    def __init__(self, alike: tuple[str, ...], settle: Callable[[], None]) -> None:
        self._alike, self._settle = (
            alike,
            settle,
        )  # settle: makes the states say what they are compared by
        self._present: list[list[bool]] = []
        self._parts: list[Part] = []

    def with_gradients(
        self, groups: list[dict[str, Any]], names: dict[int, str], state: Any
    ) -> list[Part]:
        """The parameters that have gradients. names: by the parameters' ids; state: the optimiser's."""
        present = [[p.grad is not None for p in group["params"]] for group in groups]
        if present != self._present or any(
            state.get(part.owners[0]) is not part.states[0] for part in self._parts
        ):
            self._settle()
            self._parts = [
                part for group in groups for part in _put_together(group, names, state, self._alike)
            ]
            self._present = present
        for part in self._parts:
            if part.spread is not None:
                part.find_own()
        return self._parts


def _put_together(
    group: dict[str, Any], names: dict[int, str], state: Any, alike: Iterable[str]
) -> list[Part]:
    """The parameters of a group that have gradients, together where dtype, device and the states `alike` agree."""
    together: dict[Any, list[Tensor]] = {}
    for p in group["params"]:
        if p.grad is not None:
            key = p.dtype, p.device, spread_of(p), *(state[p].get(name, 0) for name in alike)
            together.setdefault(key, []).append(p)
    return [
        Part(group, [names[id(p)] for p in ps], ps, [state[p] for p in ps], spread_of(ps[0]))
        for ps in together.values()
    ]
