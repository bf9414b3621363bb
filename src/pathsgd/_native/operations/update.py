"""One step of a path optimiser over a list of parameters, in passes over memory (operands.py has what they compute)."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pathsgd._native import abi, loader
from pathsgd._native.abi import INT, POINTER, REAL, fields
from pathsgd._native.fallback import update as fallback
from pathsgd._native.operands import Operands, UpdateRule


class UpdateCall(ctypes.Structure):
    _fields_ = [
        *fields(INT, "count threads"),
        *fields(POINTER, "rows columns row_strides column_strides"),
        *fields(POINTER, "parameters gradients whitenings first second"),
        *fields(INT, "direction whitens"),
        *fields(REAL, "factor momentum beta1 beta2 eps keep alpha"),
        *(("sums", POINTER), ("part", INT), ("to", POINTER)),
    ]


class Update:
    """The passes of a step. It may serve many steps: `renew` looks up what has moved in memory since the last one."""

    def __init__(self, operands: Operands) -> None:
        self._operands = operands
        self._arguments = None
        if _fits(operands):
            self._dtype = operands.parameters[0].dtype
            self._arguments = UpdateCall()
            self._fill(self._arguments)

    def _fill(self, arguments: UpdateCall) -> None:
        o, count = self._operands, len(self._operands.parameters)
        whitenings, layouts = [], []
        for w in o.whitenings:
            layout = _matrix_of(w)
            if layout is None:
                w = w.contiguous()
                layout = 1, w.numel(), 0, 1
            whitenings.append(w)
            layouts.append(layout)
        numbers = INT * count
        arrays: list[Any] = [numbers(*column) for column in zip(*layouts)]
        for tensors in (o.parameters, o.gradients, whitenings, o.first, o.second):
            arrays.append(numbers(*[t.data_ptr() for t in tensors]) if tensors else None)
        self._sums = (REAL * count)()
        self._kept = whitenings, arrays
        self._addresses = arrays[4], arrays[5]
        arguments.count, arguments.sums = count, ctypes.addressof(self._sums)
        (arguments.rows, arguments.columns, arguments.row_strides, arguments.column_strides, arguments.parameters,
         arguments.gradients, arguments.whitenings, arguments.first, arguments.second) = [
             a and ctypes.addressof(a) for a in arrays]  # fmt: skip
        self.renew(o.gradients)

    def renew(self, gradients: Sequence[Tensor]) -> None:
        """Another step with the same parameters, whitenings and moments, and these gradients."""
        self._operands.gradients = gradients
        arguments = self._arguments
        if arguments is None:
            return
        dtype = self._dtype
        if any(t.dtype is not dtype for ts in (self._operands.parameters, gradients) for t in ts):
            self._arguments = None  # somebody has changed the model's type: torch says what it thinks of that
            return
        self._dense = gradients = [g if g.is_contiguous() else g.contiguous() for g in gradients]
        at_parameters, at_gradients = self._addresses
        at_parameters[:] = [p.data_ptr() for p in self._operands.parameters]
        at_gradients[:] = [g.data_ptr() for g in gradients]
        arguments.threads = loader.thread_count()

    def square_sums(self) -> list[float]:
        """sum u^2 of each parameter, in float64."""
        if self._arguments is None:
            return fallback.square_sums(self._operands)
        abi.call("square_sums", [self._dtype], self._arguments)
        return list(self._sums)

    def moments(self, rule: UpdateRule) -> None:
        """Bring the moments up to date with this gradient."""
        if self._arguments is None:
            fallback.moments(self._operands, rule)
        else:
            abi.call("moments", [self._dtype], self._following(self._arguments, rule))

    def direction(self, rule: UpdateRule, index: int) -> Tensor:
        """d of one parameter, 0 where its whitening is 0 and nothing moves."""
        if self._arguments is None:
            return fallback.direction(self._operands, rule, index)
        to = torch.empty_like(self._operands.parameters[index], memory_format=torch.contiguous_format)
        arguments = self._following(self._arguments, rule)
        arguments.part, arguments.to = index, to.data_ptr()
        abi.call("direction", [self._dtype], arguments)
        return to

    def apply(self, rule: UpdateRule, alpha: float, keep: float) -> None:
        """p <- keep * p + alpha * d .* w."""
        if self._arguments is None:
            fallback.apply(self._operands, rule, alpha, keep)
        else:
            arguments = self._following(self._arguments, rule)
            arguments.alpha, arguments.keep = alpha, keep
            abi.call("apply", [self._dtype], arguments)
            # The kernel writes past autograd's bookkeeping: a graph that still needs the old values must find out.
            torch.autograd.graph.increment_version(self._operands.parameters)

    @staticmethod
    def _following(arguments: UpdateCall, rule: UpdateRule) -> UpdateCall:
        arguments.direction, arguments.whitens, arguments.factor = rule.direction, rule.whitens, rule.factor
        arguments.momentum, (arguments.beta1, arguments.beta2), arguments.eps = rule.momentum, rule.betas, rule.eps
        return arguments


def _fits(o: Operands) -> bool:
    """Whether the kernel can take these: dense CPU tensors of one type it knows."""
    dtype = o.parameters[0].dtype
    if dtype not in abi.C_TYPES or loader.library() is None:
        return False
    for t in (*o.parameters, *o.first, *o.second):
        if t.dtype != dtype or not t.is_cpu or not t.is_contiguous():
            return False
    return all(t.dtype == dtype and t.is_cpu for t in (*o.gradients, *o.whitenings))


def _matrix_of(w: Tensor) -> tuple[int, int, int, int] | None:
    """rows, columns and strides of a broadcast tensor seen as a matrix, column stride 0 or 1; None if it cannot be."""
    if w.is_contiguous():
        return 1, w.numel(), 0, 1
    strides = w.stride()
    if not any(strides):
        return 1, w.numel(), 0, 0
    if w.dim() == 2 and strides[1] in (0, 1):
        return w.shape[0], w.shape[1], strides[0], strides[1]
    return None
