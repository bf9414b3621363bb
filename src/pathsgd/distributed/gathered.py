"""A sharded parameter of the squared network: gathered where it is used, then freed.

Each step of the net that reads the parameter gathers and squares it. For the backward pass autograd
does not keep the square but a note of its parameter, which is gathered again when needed. So only
one layer is whole at a time, forward and backward, at the cost of one more gathering of every
parameter. Every process computes kappa1 for the whole parameter and keeps its own part.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pathsgd.arithmetic.scaled import Scaled, no_scale, power_of
from pathsgd.distributed.spread import parted, whole


class Gathered:
    """One sharded parameter. wanted: whether to compute kappa1; anchor: the autograd leaf.

    largest: an upper bound on the entries of kappa1, as far as it is known.
    """

    def __init__(self, p: Tensor, order: float, *, wanted: bool) -> None:
        self._p, self._order = p.detach(), order
        self.anchor = torch.zeros((), dtype=torch.float64, device=p.device, requires_grad=wanted)
        self.largest = torch.zeros((), dtype=torch.float64, device=p.device)
        self._log_scale = no_scale()
        self._kappa1: Tensor | None = None

    def now(self) -> Scaled:
        """q, whole."""
        q = self._squared()
        self._log_scale = q.log_scale
        return Scaled(_Anchored.apply(q.mantissa, self.anchor, self), q.log_scale)

    def again(self) -> Tensor:
        """The mantissa of q, whole, after `now`."""
        return self._squared().mantissa

    @torch.no_grad()
    def _squared(self) -> Scaled:
        return power_of(whole(self._p), self._order)

    @torch.no_grad()
    def add(self, derivative: Tensor) -> None:
        """One use of the parameter adds this to kappa1, in units of the mantissa."""
        own = parted(derivative, self._p)
        self._kappa1 = own if self._kappa1 is None else self._kappa1 + own
        self.largest = self.largest + derivative.amax()

    def kappa1(self) -> Tensor:
        """The derivative in q, in parts; zero if the parameter leads to no output."""
        if self._kappa1 is None:
            return torch.zeros_like(self._p, dtype=torch.float64)
        scale = float(self._log_scale)
        return self._kappa1 if scale == 0 else self._kappa1 * math.exp(-scale)

    def mass(self) -> None:
        """The path mass that enters each row is not known without a look at the rows."""
        return None


class _Anchored(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, mantissa: Tensor, anchor: Tensor, gathered: Gathered) -> Tensor:
        ctx.gathered = gathered
        return mantissa.view_as(mantissa)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor, None]:
        ctx.gathered.add(grads[0])
        return None, torch.zeros_like(ctx.gathered.anchor), None


@dataclass(frozen=True)
class _Note:
    """Whose q autograd wants to see again, and how it lay in memory."""

    gathered: Gathered
    size: torch.Size
    stride: tuple[int, ...]
    offset: int


class Shelf:
    """Parameters gathered by one step of the net, and the notes that replace their squares."""

    def __init__(self) -> None:
        self._there: dict[int, Gathered] = {}

    def take(self, operand: Any) -> Any:
        """What stands for an operand in this step: q, if it has to be gathered."""
        if not isinstance(operand, Gathered):
            return operand
        q = operand.now()
        self._there[_place(q.mantissa)] = operand
        return q

    def clear(self) -> None:
        """End a step: from now on the memory of its squares may be reused."""
        self._there.clear()

    def notes(self) -> Any:
        """Inside, autograd keeps notes."""
        hooks: Callable[..., Any] = torch.autograd.graph.saved_tensors_hooks
        return hooks(self._noted, _looked_up)

    def _noted(self, saved: Tensor) -> Tensor | _Note:
        gathered = self._there.get(_place(saved)) if self._there else None
        if gathered is None:
            return saved
        return _Note(gathered, saved.shape, saved.stride(), int(saved.storage_offset()))


def _place(t: Tensor) -> int:
    return t.untyped_storage().data_ptr()


def _looked_up(kept: Tensor | _Note) -> Tensor:
    if isinstance(kept, _Note):
        return kept.gathered.again().as_strided(kept.size, kept.stride, kept.offset)
    return kept
