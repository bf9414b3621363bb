"""One step of a path optimiser over a list of parameters, in passes over memory.

    u = w .* grad                                      w = 1/sqrt(K), broadcast to the parameter
    moments   m <- mu m + f u,   or Adam's of x = f u (f u w in the paper's form)
    d         u  |  m  |  f u + mu m  |  m / (sqrt(v) + eps)
    apply     p <- keep * p + alpha * d .* w           (without w in the paper's form of Adam)

`src/update.cpp` has the same in C. Whitenings that are constant along a dimension have stride 0
there and are never expanded.
"""

from __future__ import annotations

import bisect
import ctypes
import itertools
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pathsgd.kernels import native
from pathsgd.kernels.native import INT, POINTER, REAL, fields


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """What the step of a parameter is computed in.

    Half precision is rounded once, when the parameter is written.
    """
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


GRADIENT, MOMENTUM, NESTEROV, ADAM = range(4)
"""What a step follows; the numbers of `Direction` in update.h."""


@dataclass(frozen=True)
class UpdateRule:
    """How a step is made of a whitened gradient.

    factor: f, what clipping leaves of the gradient; whitens: the direction is multiplied by w (in
    the paper's form of Adam the gradient is instead).
    """

    direction: int
    factor: float = 1.0
    momentum: float = 0.0
    betas: tuple[float, float] = (0.0, 0.0)
    eps: float = 0.0
    whitens: bool = True


@dataclass
class Operands:
    """What a step works on, parameter by parameter.

    First and second are empty where a rule has no such moments.
    """

    parameters: Sequence[Tensor]
    gradients: Sequence[Tensor]
    whitenings: Sequence[Tensor]
    """Each expanded to its parameter's shape; or the rows of an outer product, whose columns are
    in `columns`."""
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


class UpdateCall(ctypes.Structure):
    _fields_ = [
        *fields(INT, "count threads"),
        *fields(POINTER, "rows columns row_strides column_strides"),
        *fields(POINTER, "parameters gradients whitenings column_whitenings first second"),
        *fields(INT, "direction whitens"),
        *fields(REAL, "factor momentum beta1 beta2 eps keep alpha"),
        *(("sums", POINTER), ("part", INT), ("to", POINTER)),
    ]


class Update:
    """The passes of a step. It serves many steps.

    `renew` asks again before each whether the kernel may have the tensors.
    """

    def __init__(self, operands: Operands) -> None:
        self._operands = operands
        self._arguments: UpdateCall | None = None
        self._prepare()

    def renew(self, gradients: Sequence[Tensor]) -> None:
        """Another step with the same parameters, whitenings and moments, and these gradients."""
        self._operands.gradients = gradients
        if (
            self._arguments is None
            or native.seen(_kept(self._operands)) != self._seen
            or not self._takes_gradients(self._arguments)
        ):
            self._prepare()

    def _prepare(self) -> None:
        """Choose between the kernel and torch for tensors that are new or not what they were."""
        o, self._arguments = self._operands, None
        self._dense: Sequence[Tensor] = ()
        _check_shapes(o)
        dtype = self._dtype = o.parameters[0].dtype
        columns = [c for c in o.columns if c is not None]
        written = [*o.parameters, *o.first, *o.second]
        if not native.accepts(*_kept(o), *o.gradients, dtype=dtype) or not all(
            t.is_contiguous() for t in (*written, *columns)
        ):
            return
        self._seen = native.seen(_kept(o))
        # A whitening that no pair of strides describes is written out; one like that is never
        # changed in place.
        matrices = [_matrix_of(w) for w in o.whitenings]
        self._whitenings = [w if m else w.contiguous() for w, m in zip(o.whitenings, matrices)]
        self._written = sorted(map(_range, written))
        reads = map(_range, (*self._whitenings, *columns))
        if not _are_apart(self._written) or not all(map(self._is_apart, reads)):
            return
        numbers = INT * len(o.parameters)
        sizes = [m or (1, w.numel(), 0, 1) for w, m in zip(o.whitenings, matrices)]
        arrays: list[Any] = [
            *(numbers(*column) for column in zip(*sizes)),
            numbers(*map(_place, o.parameters)),
            numbers(),
            numbers(*map(_place, self._whitenings)),
            numbers(*(0 if c is None else _place(c) for c in o.columns)) if columns else None,
            *(numbers(*map(_place, ts)) if ts else None for ts in (o.first, o.second)),
        ]
        self._sums = (REAL * len(o.parameters))()
        self._arrays, self._gradients, self._places = arrays, arrays[5], list[int]()
        arguments = UpdateCall(len(o.parameters), 0, *(a and ctypes.addressof(a) for a in arrays))
        arguments.sums = ctypes.addressof(self._sums)
        if self._takes_gradients(arguments):
            self._arguments = arguments

    def _takes_gradients(self, arguments: UpdateCall) -> bool:
        """Put the gradients' addresses into `arguments`, if the kernel may have them."""
        o = self._operands
        if not native.accepts(*o.gradients, dtype=self._dtype):
            return False
        if any(g.shape != p.shape for g, p in zip(o.gradients, o.parameters)):
            return False
        dense = [g if g.is_contiguous() else g.contiguous() for g in o.gradients]
        places = [*map(_place, dense)]
        if places != self._places:
            if not all(map(self._is_apart, map(_range, dense))):
                return False
            self._gradients[:] = self._places = places
        self._dense = dense  # kept alive until the step is done
        arguments.threads = native.thread_count()
        return True

    def _is_apart(self, read: tuple[int, int]) -> bool:
        """Whether nothing is written where this is read.

        The kernel writes a parameter before it reads the next.
        """
        at = bisect.bisect_right(self._written, read[0], key=operator.itemgetter(1))
        return at == len(self._written) or self._written[at][0] >= read[1]

    def release(self) -> None:
        """Let the gradients go: whoever frees them must find them freed.

        The next step brings its own.
        """
        self._operands.gradients = self._dense = ()

    def square_sums(self) -> list[float]:
        """sum u^2 of each parameter, in float64."""
        if self._arguments is None:
            return _square_sums(self._operands)
        native.call("square_sums", self._arguments, self._dtype)
        return list(self._sums)

    def moments(self, rule: UpdateRule) -> None:
        """Bring the moments up to date with this gradient."""
        if self._arguments is None:
            _moments(self._operands, rule)
        else:
            native.call("moments", self._following(self._arguments, rule), self._dtype)

    def direction(self, rule: UpdateRule, index: int) -> Tensor:
        """d of one parameter, 0 where its whitening is 0 and nothing moves."""
        if self._arguments is None:
            return _direction(self._operands, rule, index)
        to = torch.empty_like(
            self._operands.parameters[index], memory_format=torch.contiguous_format
        )
        arguments = self._following(self._arguments, rule)
        arguments.part, arguments.to = index, to.data_ptr()
        native.call("direction", arguments, self._dtype)
        return to

    def direction_square(self, rule: UpdateRule, index: int) -> float:
        """sum d^2 of one parameter, in float64."""
        if self._arguments is None:
            return float(_direction(self._operands, rule, index).double().square().sum())
        arguments = self._following(self._arguments, rule)
        arguments.part = index
        native.call("direction_square", arguments, self._dtype)
        return float(self._sums[index])

    def apply(self, rule: UpdateRule, alpha: float, keep: float) -> None:
        """p <- keep * p + alpha * d .* w."""
        if self._arguments is None:
            _apply(self._operands, rule, alpha, keep)
        else:
            self._moved("apply", self._following(self._arguments, rule), alpha, keep)

    def advance(self, rule: UpdateRule, alpha: float, keep: float) -> None:
        """`moments` and `apply` in one pass over memory, for a rule with moments."""
        if self._arguments is None:
            _moments(self._operands, rule)
            _apply(self._operands, rule, alpha, keep)
        else:
            self._moved("advance", self._following(self._arguments, rule), alpha, keep)

    def _moved(self, operation: str, arguments: UpdateCall, alpha: float, keep: float) -> None:
        arguments.alpha, arguments.keep = alpha, keep
        native.call(operation, arguments, self._dtype)
        # The kernel writes past autograd's bookkeeping: a graph that still needs the old values
        # must find out.
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


_place = Tensor.data_ptr


def _range(t: Tensor) -> tuple[int, int]:
    """Where a tensor begins and ends in memory."""
    last = sum((n - 1) * stride for n, stride in zip(t.shape, t.stride()))
    return t.data_ptr(), t.data_ptr() + (last + 1) * t.itemsize * bool(t.numel())


def _are_apart(ranges: Sequence[tuple[int, int]]) -> bool:
    return all(before[1] <= after[0] for before, after in itertools.pairwise(ranges))


def _kept(o: Operands) -> list[Tensor]:
    """The operands that stay from step to step."""
    columns = (c for c in o.columns if c is not None)
    return [*o.parameters, *o.whitenings, *columns, *o.first, *o.second]


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
                    f"parameter {name!r} has shape {tuple(p.shape)} and its {kind} "
                    f"{tuple(t.shape)}: the parameter was "
                    "replaced, or the state is that of another model; make a new optimiser"
                )
    for name, p, columns in zip(names, o.parameters, o.columns):
        if columns is not None and columns.shape != (1, *p.shape[1:]):
            raise ValueError(
                f"parameter {name!r} has shape {tuple(p.shape)} and {tuple(columns.shape)} columns"
            )


def _matrix_of(w: Tensor) -> tuple[int, int, int, int] | None:
    """rows, columns and strides of a broadcast tensor seen as a matrix, column stride 0 or 1.

    None if it cannot be.
    """
    if w.is_contiguous():
        return 1, w.numel(), 0, 1
    strides = w.stride()
    if not any(strides):
        return 1, w.numel(), 0, 0
    if w.dim() == 2 and strides[1] in (0, 1):
        return w.shape[0], w.shape[1], strides[0], strides[1]
    return None


# The passes in torch alone.


def _square_sums(o: Operands) -> list[float]:
    return [float((g * o.whitening(i)).double().square().sum()) for i, g in enumerate(o.gradients)]


def _moments(o: Operands, rule: UpdateRule) -> None:
    for index, first in enumerate(o.first):
        u = o.gradients[index] * o.whitening(index) * rule.factor
        if rule.direction != ADAM:
            first.mul_(rule.momentum).add_(u)
            continue
        if not rule.whitens:
            u.mul_(o.whitening(index))
        first.lerp_(u, 1 - rule.betas[0])
        o.second[index].mul_(rule.betas[1]).addcmul_(u, u, value=1 - rule.betas[1])


def _direction(o: Operands, rule: UpdateRule, index: int) -> Tensor:
    return torch.where(o.whitening(index) == 0, 0.0, _unmasked(o, rule, index))


def _unmasked(o: Operands, rule: UpdateRule, index: int) -> Tensor:
    if rule.direction == MOMENTUM:
        return o.first[index]
    if rule.direction == ADAM:
        return o.first[index] / (o.second[index].sqrt() + rule.eps)
    u = o.gradients[index] * o.whitening(index)
    return (
        u
        if rule.direction == GRADIENT
        else u.mul_(rule.factor).add_(o.first[index], alpha=rule.momentum)
    )


def _apply(o: Operands, rule: UpdateRule, alpha: float, keep: float) -> None:
    for index, p in enumerate(o.parameters):
        d = _unmasked(o, rule, index)
        step = d * o.whitening(index) if rule.whitens else d
        if compute_dtype(p.dtype) != p.dtype:
            p.copy_(p.to(step.dtype).mul_(keep).add_(step, alpha=alpha))
            continue
        if keep != 1:
            p.mul_(keep)
        p.add_(step, alpha=alpha)
