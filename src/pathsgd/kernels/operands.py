"""What one step of a path optimiser works on, and how it moves.

    u = w .* grad                                                   w = 1/sqrt(K), broadcast to the parameter's shape
    moments   m <- mu m + f u,   or Adam's of x = f u (f u w in the paper's form)
    d         u  |  m  |  f u + mu m  |  m / (sqrt(v) + eps)
    apply     p <- keep * p + alpha * d .* w                         (without w in the paper's form of Adam)

`update.h` has the same in C. Whitenings that are constant along a dimension have stride 0 there and are never expanded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """What the step of a parameter is computed in; half precision is rounded once, when the parameter is written."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


GRADIENT, MOMENTUM, NESTEROV, ADAM = range(4)
"""What a step follows; the numbers of `Direction` in update.h."""


@dataclass(frozen=True)
class UpdateRule:
    """How a step is made of a whitened gradient.

    factor: f, what clipping leaves of the gradient; whitens: the direction is multiplied by w (in the paper's form of
    Adam the gradient is instead).
    """

    direction: int
    factor: float = 1.0
    momentum: float = 0.0
    betas: tuple[float, float] = (0.0, 0.0)
    eps: float = 0.0
    whitens: bool = True


@dataclass
class Operands:
    """What a step works on, parameter by parameter; first and second are empty where a rule has no such moments."""

    parameters: Sequence[Tensor]
    gradients: Sequence[Tensor]
    whitenings: Sequence[Tensor]
    """Each expanded to its parameter's shape; or the rows of an outer product, whose columns are in `columns`."""
    first: Sequence[Tensor] = ()
    second: Sequence[Tensor] = ()
    columns: Sequence[Tensor | None] = ()
    """(1, m) where a whitening is an outer product; none at all where no whitening is."""
    names: Sequence[str] = ()
    """Of the parameters, for messages; their numbers where there are none."""

    def whitening(self, index: int) -> Tensor:
        """1/sqrt(K) of one parameter as a tensor of its shape."""
        w, columns = self.whitenings[index], self.columns[index] if self.columns else None
        return w if columns is None else w * columns
