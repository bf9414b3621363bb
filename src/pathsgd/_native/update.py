"""One step of a path optimiser over a list of parameters: the kernel's passes over memory, or torch's.

    u = w .* grad                                                   w = 1/sqrt(K), broadcast to the parameter's shape
    moments   m <- mu m + f u,   or Adam's of x = f u (f u w in the paper's form)
    d         u  |  m  |  f u + mu m  |  m / (sqrt(v) + eps)
    apply     p <- keep * p + alpha * d .* w                         (without w in the paper's form of Adam)

`update.h` has the same in C. Whitenings that are constant along a dimension have stride 0 there and are never expanded.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pathsgd._native import update_fallback
from pathsgd._native.loader import load, thread_count
from pathsgd._native.update_fallback import UpdateRule

_INT, _REAL, _POINTER = ctypes.c_int64, ctypes.c_double, ctypes.c_void_p
_C_TYPES = {torch.float32: "float", torch.float64: "double"}


class _UpdateCall(ctypes.Structure):
    _fields_ = [
        *((name, _INT) for name in ("count", "threads")),
        *((name, _POINTER) for name in ("rows", "columns", "row_strides", "column_strides")),
        *((name, _POINTER) for name in ("parameters", "gradients", "whitenings", "first", "second")),
        *((name, _INT) for name in ("direction", "whitens")),
        *((name, _REAL) for name in ("factor", "momentum", "beta1", "beta2", "eps", "keep", "alpha")),
    ]


class _SpectralCall(ctypes.Structure):
    _fields_ = [
        *((name, _INT) for name in ("rows", "columns", "iterations")),
        *((name, _POINTER) for name in ("matrix", "vector")),
        ("length", _REAL),
    ]


class _InverseRootCall(ctypes.Structure):
    _fields_ = [
        *((name, _INT) for name in ("rows", "columns", "threads")),
        *((name, _POINTER) for name in ("kappa", "row_factors", "column_factors")),
        ("scale", _REAL),
        ("to", _POINTER),
    ]


@dataclass
class Operands:
    """What a step works on, parameter by parameter; first and second are empty where a rule has no such moments."""

    parameters: Sequence[Tensor]
    gradients: Sequence[Tensor]
    whitenings: Sequence[Tensor]
    first: Sequence[Tensor] = ()
    second: Sequence[Tensor] = ()


class Update:
    """The passes of a step. It may serve many steps: `renew` looks up what has moved in memory since the last one."""

    def __init__(self, operands: Operands) -> None:
        library = load().library
        self._operands = operands
        self._call = None
        if library is not None and _fits(operands):
            self._dtype = operands.parameters[0].dtype
            self._library, self._type = library, _C_TYPES[self._dtype]
            self._call = _UpdateCall()
            self._fill(self._call)

    def _fill(self, call: _UpdateCall) -> None:
        o, count = self._operands, len(self._operands.parameters)
        whitenings, layouts = [], []
        for w in o.whitenings:
            layout = _matrix_of(w)
            if layout is None:
                w = w.contiguous()
                layout = 1, w.numel(), 0, 1
            whitenings.append(w)
            layouts.append(layout)
        numbers = _INT * count
        arrays: list[Any] = [numbers(*column) for column in zip(*layouts)]
        for tensors in (o.parameters, o.gradients, whitenings, o.first, o.second):
            arrays.append(numbers(*[t.data_ptr() for t in tensors]) if tensors else None)
        self._kept = whitenings, arrays
        self._addresses = arrays[4], arrays[5]
        call.count = count
        (call.rows, call.columns, call.row_strides, call.column_strides, call.parameters, call.gradients,
         call.whitenings, call.first, call.second) = [a and ctypes.addressof(a) for a in arrays]  # fmt: skip
        self.renew(o.gradients)

    def renew(self, gradients: Sequence[Tensor]) -> None:
        """Another step with the same parameters, whitenings and moments, and these gradients."""
        self._operands.gradients = gradients
        call = self._call
        if call is None:
            return
        dtype = self._dtype
        if any(t.dtype is not dtype for ts in (self._operands.parameters, gradients) for t in ts):
            self._call = None  # somebody has changed the model's type: torch says what it thinks of that
            return
        self._dense = gradients = [g if g.is_contiguous() else g.contiguous() for g in gradients]
        at_parameters, at_gradients = self._addresses
        at_parameters[:] = [p.data_ptr() for p in self._operands.parameters]
        at_gradients[:] = [g.data_ptr() for g in gradients]
        call.threads = thread_count()

    def square_sums(self) -> list[float]:
        """sum u^2 of each parameter, in float64."""
        if self._call is None:
            return update_fallback.square_sums(self._operands)
        sums = (_REAL * self._call.count)()
        self._run("square_sums", None, sums)
        return list(sums)

    def moments(self, rule: UpdateRule) -> None:
        """Bring the moments up to date with this gradient."""
        if self._call is None:
            update_fallback.moments(self._operands, rule)
        else:
            self._run("moments", rule)

    def direction(self, rule: UpdateRule, index: int) -> Tensor:
        """d of one parameter, 0 where its whitening is 0 and nothing moves."""
        if self._call is None:
            return update_fallback.direction(self._operands, rule, index)
        found = torch.empty_like(self._operands.parameters[index], memory_format=torch.contiguous_format)
        self._run("direction", rule, index, found.data_ptr())
        return found

    def apply(self, rule: UpdateRule, alpha: float, keep: float) -> None:
        """p <- keep * p + alpha * d .* w."""
        if self._call is None:
            update_fallback.apply(self._operands, rule, alpha, keep)
        else:
            self._call.alpha, self._call.keep = alpha, keep
            self._run("apply", rule)
            # The kernel writes past autograd's bookkeeping: a graph that still needs the old values must find out.
            torch.autograd.graph.increment_version(self._operands.parameters)

    def _run(self, name: str, rule: UpdateRule | None, *more: Any) -> None:
        call = self._call
        assert call is not None
        if rule is not None:
            call.direction, call.whitens, call.factor = rule.direction, rule.whitens, rule.factor
            call.momentum, (call.beta1, call.beta2), call.eps = rule.momentum, rule.betas, rule.eps
        arguments = (ctypes.byref(call), *(_INT(a) if isinstance(a, int) else a for a in more))
        if getattr(self._library, f"pathsgd_{name}_{self._type}")(*arguments) != 0:
            raise MemoryError(f"pathsgd_{name} could not allocate its working memory")


def _fits(o: Operands) -> bool:
    """Whether the kernel can take these: dense CPU tensors of one type it knows."""
    dtype = o.parameters[0].dtype
    if dtype not in _C_TYPES:
        return False
    for t in (*o.parameters, *o.first, *o.second):
        if t.dtype != dtype or not t.is_cpu or not t.is_contiguous():
            return False
    return all(t.dtype == dtype and t.is_cpu for t in (*o.gradients, *o.whitenings))


def _matrix_of(w: Tensor) -> tuple[int, int, int, int] | None:
    """rows, columns and strides of a broadcast tensor seen as a matrix, column stride 0 or 1; None if it is none."""
    if w.is_contiguous():
        return 1, w.numel(), 0, 1
    strides = w.stride()
    if not any(strides):
        return 1, w.numel(), 0, 0
    if w.dim() == 2 and strides[1] in (0, 1):
        return w.shape[0], w.shape[1], strides[0], strides[1]
    return None


def spectral_norm(matrix: Tensor, start: Tensor, iterations: int) -> tuple[float, Tensor] | None:
    """Largest singular value by power iteration and the vector to start from next time; None without a kernel."""
    library = load().library
    kind = _C_TYPES.get(matrix.dtype)
    if (
        library is None
        or kind is None
        or not matrix.is_cpu
        or not matrix.is_contiguous()
        or start.dtype != matrix.dtype
    ):
        return None
    vector = start.clone(memory_format=torch.contiguous_format)
    call = _SpectralCall(matrix.shape[0], matrix.shape[1], iterations, matrix.data_ptr(), vector.data_ptr(), 0.0)
    if getattr(library, f"pathsgd_spectral_{kind}")(ctypes.byref(call)) != 0:
        raise MemoryError("pathsgd_spectral could not allocate its working memory")
    return call.length, vector if 0 < call.length < math.inf else start


def inverse_root(
    kappa: Tensor,
    rows: Tensor | None,
    columns: Tensor | None,
    scale: float,
    dtype: torch.dtype,
    to: Tensor | None = None,
) -> Tensor | None:
    """min(largest, sqrt(scale) r_i c_j / sqrt(kappa_ij)), 0 where kappa is 0; None where no kernel can do it.

    kappa: (n, m); rows (n,), columns (m,): float64, or None for ones; to: where to write it, if it has that shape and
    dtype.
    """
    library = load().library
    kinds = _C_TYPES.get(kappa.dtype), _C_TYPES.get(dtype)
    known = kinds in (("float", "float"), ("double", "float"), ("double", "double"))
    if library is None or not known or not kappa.is_cpu or not kappa.is_contiguous():
        return None
    factors = [f if f is None else f.contiguous() for f in (rows, columns)]
    found = to
    if found is None or found.shape != kappa.shape or found.dtype != dtype or not found.is_contiguous():
        found = kappa.new_empty(kappa.shape, dtype=dtype)
    addresses = [f if f is None else f.data_ptr() for f in factors]
    call = _InverseRootCall(*kappa.shape, thread_count(), kappa.data_ptr(), *addresses, scale, found.data_ptr())
    getattr(library, f"pathsgd_inverse_root_{kinds[0]}_{kinds[1]}")(ctypes.byref(call))
    return found
