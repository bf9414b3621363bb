"""One step of a path optimiser over a list of parameters, in passes over memory (operands.py has what they compute)."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pathsgd.kernels import abi, loader
from pathsgd.kernels.abi import INT, POINTER, REAL, fields
from pathsgd.kernels.fallback import update as fallback
from pathsgd.kernels.operands import Operands, UpdateRule


class UpdateCall(ctypes.Structure):
    _fields_ = [
        *fields(INT, "count threads"),
        *fields(POINTER, "rows columns row_strides column_strides"),
        *fields(POINTER, "parameters gradients whitenings column_whitenings first second"),
        *fields(INT, "direction whitens"),
        *fields(REAL, "factor momentum beta1 beta2 eps keep alpha"),
        *(("sums", POINTER), ("part", INT), ("to", POINTER)),
    ]


_place = Tensor.data_ptr


class Update:
    """The passes of a step. It may serve many steps: `renew` looks at every tensor again before each of them."""

    def __init__(self, operands: Operands) -> None:
        self._operands = operands
        self._arguments: UpdateCall | None = None
        self._prepare()

    def renew(self, gradients: Sequence[Tensor]) -> None:
        """Another step with the same parameters, whitenings and moments, and these gradients."""
        self._operands.gradients = gradients
        if self._arguments is None or not self._fills(self._arguments):
            self._prepare()

    def _prepare(self) -> None:
        """Choose between the kernel and torch for tensors that are new or not what they were."""
        o, self._arguments = self._operands, None
        self._dense: Sequence[Tensor] = ()
        _check_shapes(o)
        dtype = self._dtype = o.parameters[0].dtype
        self._shapes = [p.shape for p in o.parameters]
        columns = [c for c in o.columns if c is not None]
        self._own = [*o.whitenings, *columns, *o.first, *o.second]
        tensors = [*o.parameters, *o.gradients, *self._own]
        if (
            dtype not in abi.C_TYPES
            or not abi.accepts(*tensors)
            or any(t.dtype is not dtype for t in tensors)
            or not all(t.is_contiguous() for t in (*columns, *o.first, *o.second))
        ):
            return
        # A whitening that no pair of strides describes is written out; one like that is never changed in place.
        matrices = [_matrix_of(w) for w in o.whitenings]
        self._whitenings = [
            w if matrix else w.contiguous() for w, matrix in zip(o.whitenings, matrices)
        ]
        numbers = INT * len(o.parameters)
        arrays: list[Any] = [
            *(
                numbers(*column)
                for column in zip(
                    *(m or (1, w.numel(), 0, 1) for w, m in zip(o.whitenings, matrices))
                )
            ),
            *(numbers(), numbers()),
            numbers(*map(_place, self._whitenings)),
            numbers(*(0 if c is None else _place(c) for c in o.columns)) if columns else None,
            *(numbers(*map(_place, ts)) if ts else None for ts in (o.first, o.second)),
        ]
        self._sums = (REAL * len(o.parameters))()
        self._arrays, self._at_parameters, self._at_gradients = arrays, arrays[4], arrays[5]
        # Memory that is held on to cannot become another tensor's: as long as the places stay, so does what they are.
        self._own_places, self._held = (
            [*map(_place, self._own)],
            [t.untyped_storage() for t in self._own],
        )
        arguments = UpdateCall(len(o.parameters), 0, *(a and ctypes.addressof(a) for a in arrays))
        arguments.sums = ctypes.addressof(self._sums)
        if self._fills(arguments):
            self._arguments = arguments

    def _fills(self, arguments: UpdateCall) -> bool:
        """Put the tensors' addresses into `arguments` if each tensor is still what the kernel will take it for.

        A model's owner may give a parameter other memory, another layout, type or shape between two steps. Whitenings
        and moments are the optimiser's own: it is enough that their memory is where it was.
        """
        o, dtype, plain = self._operands, self._dtype, abi.PLAIN_TENSORS
        if not all(map(Tensor.is_contiguous, o.parameters)):
            return False
        gradients = o.gradients
        if not all(map(Tensor.is_contiguous, gradients)):
            gradients = [g.contiguous() for g in gradients]
        for tensors in (o.parameters, gradients):
            for t, shape in zip(tensors, self._shapes):
                if t.dtype is not dtype or t.shape != shape or not t.is_cpu or type(t) not in plain:
                    return False
        if self._own_places != [*map(_place, self._own)]:
            return False
        self._dense = gradients  # kept alive until the step is done
        self._at_parameters[:] = [*map(_place, o.parameters)]
        self._at_gradients[:] = [*map(_place, gradients)]
        arguments.threads = loader.thread_count()
        return True

    def release(self) -> None:
        """Let the gradients go: whoever frees them must find them freed. The next step brings its own."""
        self._operands.gradients = self._dense = ()

    def square_sums(self) -> list[float]:
        """sum u^2 of each parameter, in float64."""
        if self._arguments is None:
            return fallback.square_sums(self._operands)
        abi.call("square_sums", self._arguments, self._dtype)
        return list(self._sums)

    def moments(self, rule: UpdateRule) -> None:
        """Bring the moments up to date with this gradient."""
        if self._arguments is None:
            fallback.moments(self._operands, rule)
        else:
            abi.call("moments", self._following(self._arguments, rule), self._dtype)

    def direction(self, rule: UpdateRule, index: int) -> Tensor:
        """d of one parameter, 0 where its whitening is 0 and nothing moves."""
        if self._arguments is None:
            return fallback.direction(self._operands, rule, index)
        to = torch.empty_like(
            self._operands.parameters[index], memory_format=torch.contiguous_format
        )
        arguments = self._following(self._arguments, rule)
        arguments.part, arguments.to = index, to.data_ptr()
        abi.call("direction", arguments, self._dtype)
        return to

    def direction_square(self, rule: UpdateRule, index: int) -> float:
        """sum d^2 of one parameter, in float64."""
        if self._arguments is None:
            return float(fallback.direction(self._operands, rule, index).double().square().sum())
        arguments = self._following(self._arguments, rule)
        arguments.part = index
        abi.call("direction_square", arguments, self._dtype)
        return float(self._sums[index])

    def apply(self, rule: UpdateRule, alpha: float, keep: float) -> None:
        """p <- keep * p + alpha * d .* w."""
        if self._arguments is None:
            fallback.apply(self._operands, rule, alpha, keep)
        else:
            self._moved("apply", self._following(self._arguments, rule), alpha, keep)

    def advance(self, rule: UpdateRule, alpha: float, keep: float) -> None:
        """`moments` and `apply` in one pass over memory, for a rule with moments."""
        if self._arguments is None:
            fallback.moments(self._operands, rule)
            fallback.apply(self._operands, rule, alpha, keep)
        else:
            self._moved("advance", self._following(self._arguments, rule), alpha, keep)

    def _moved(self, operation: str, arguments: UpdateCall, alpha: float, keep: float) -> None:
        arguments.alpha, arguments.keep = alpha, keep
        abi.call(operation, arguments, self._dtype)
        # The kernel writes past autograd's bookkeeping: a graph that still needs the old values must find out.
        torch.autograd.graph.increment_version(self._operands.parameters)

    @staticmethod
    def _following(arguments: UpdateCall, rule: UpdateRule) -> UpdateCall:
        arguments.direction, arguments.whitens, arguments.factor = (
            rule.direction,
            rule.whitens,
            rule.factor,
        )
        arguments.momentum, (arguments.beta1, arguments.beta2), arguments.eps = (
            rule.momentum,
            rule.betas,
            rule.eps,
        )
        return arguments


def _check_shapes(o: Operands) -> None:
    kinds = {
        "gradient": o.gradients,
        "whitening": o.whitenings,
        "first moment": o.first,
        "second moment": o.second,
    }
    names = o.names or range(len(o.parameters))
    for kind, tensors in kinds.items():
        for name, p, t in zip(names, o.parameters, tensors):
            if p.shape != t.shape:
                raise ValueError(
                    f"parameter {name!r} has shape {tuple(p.shape)} and its {kind} {tuple(t.shape)}: the parameter was "
                    "replaced, or the state is that of another model; make a new optimiser"
                )
    for name, p, columns in zip(names, o.parameters, o.columns):
        if columns is not None and columns.shape != (1, *p.shape[1:]):
            raise ValueError(
                f"parameter {name!r} has shape {tuple(p.shape)} and {tuple(columns.shape)} columns"
            )


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
