"""Parameters laid end to end: an update is then a handful of operations on long vectors, however many there are.

    parameters  p_1 (3, 4)   p_2 (3,)   p_3 (2, 3)   ...
    vector      |------------|---|------|------ ...        one per quantity: gradient, metric, moments

What an optimiser keeps lives in such vectors, and each parameter's state holds its part of them as a view; so states
are saved, loaded and inspected as with any torch optimiser.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor


class Flat:
    """Parameters of one group that have gradients, with one dtype, on one device.

    group: the parameter group; states: the state of each parameter; whitened: room for a gradient, (n,).
    """

    def __init__(self, group: dict[str, Any], names: list[str], params: list[Tensor], states: list[dict[str, Any]]):
        self.group, self.names, self.params, self.states = group, names, params, states
        self.whitened = params[0].new_zeros(sum(p.numel() for p in params))
        self._whitened_views: list[Tensor] = []
        self._whitened_views = self.views(self.whitened)
        self._vectors: dict[str, Tensor] = {}
        self._views: dict[str, list[Tensor]] = {}

    def views(self, vector: Tensor) -> list[Tensor]:
        """The parts of a vector that belong to each parameter, in its shape."""
        if vector is self.whitened and self._whitened_views:
            return self._whitened_views
        parts = vector.split([p.numel() for p in self.params])
        return [part.view(p.shape) for part, p in zip(parts, self.params)]

    def vector(self, key: str) -> Tensor:
        """State `key` of all parameters as one vector (n,); zero where a parameter has none yet."""
        known = self._vectors.get(key)
        if known is not None and self.states[0].get(key) is self._views[key][0]:
            return known
        vector = torch.zeros_like(self.whitened)
        views = self.views(vector)
        for state, view in zip(self.states, views):
            if key in state:
                view.copy_(state[key])
            state[key] = view
        self._vectors[key], self._views[key] = vector, views
        return vector

    def gradients(self) -> list[Tensor]:
        return [p.grad for p in self.params]  # type: ignore[misc]

    def gather_gradients(self) -> Tensor:
        """The gradients as one vector, in the room of `whitened`."""
        torch._foreach_copy_(self._whitened_views, self.gradients())
        return self.whitened

    def add_(self, vector: Tensor, alpha: float) -> None:
        """p <- p + alpha * its part of the vector."""
        torch._foreach_add_(self.params, self.views(vector), alpha=alpha)

    def scale_(self, factor: float) -> None:
        """p <- factor * p."""
        torch._foreach_mul_(self.params, factor)


def norm(vectors: Sequence[Tensor]) -> float:
    """Euclidean length of all vectors together; in float64 where the square leaves the range of their dtype."""
    square = sum(float(torch.dot(v, v)) for v in vectors)
    if not 0 < square < float("inf"):
        square = sum(float(v.double().square().sum()) for v in vectors)
    return square**0.5


def laid_out(group: dict[str, Any], names: dict[int, str], state: Any, alike: Iterable[str]) -> list[Flat]:
    """The parameters of a group that have gradients, together where dtype, device and the states `alike` agree."""
    together: dict[Any, list[Tensor]] = {}
    for p in group["params"]:
        if p.grad is not None:
            key = p.dtype, p.device, *(state[p].get(name, 0) for name in alike)
            together.setdefault(key, []).append(p)
    return [Flat(group, [names[id(p)] for p in ps], ps, [state[p] for p in ps]) for ps in together.values()]
