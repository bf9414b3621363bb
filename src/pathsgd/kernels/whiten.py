"""1/sqrt(K) of many parameters: what their gradients are multiplied by."""

from __future__ import annotations

import ctypes
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from pathsgd.kernels import native
from pathsgd.kernels.native import INT, POINTER, REAL, address, fields

_MATRIX, _OUTER = range(2)  # `Form` of whiten.h
_FROM = {torch.float32: (torch.float32, torch.float64), torch.float64: (torch.float64,)}
"""The types of kappa that the kernel takes, by that of the result."""
_NO_NODES: tuple[int | None, ...] = (None,) * 5
_LEAST = 1e-30
"""A factor below this share of its vector's largest might be lost in float32: the whole matrix is written then."""


class WhitenJob(ctypes.Structure):
    _fields_ = [
        *fields(INT, "rows columns repeat form is_double"),
        *fields(
            POINTER,
            "kappa column_kappa out_side row_out row_into column_out column_into to to_columns",
        ),
        *fields(REAL, "least log_size"),
        ("is_sized", INT),
    ]


class WhitenCall(ctypes.Structure):
    _fields_ = [
        *fields(INT, "count threads"),
        *fields(POINTER, "out_side into_side"),
        *(("scale", REAL), ("jobs", POINTER)),
    ]


@dataclass(frozen=True)
class Lines:
    """A parameter as a matrix whose rows and columns lead to and from nodes, by their numbers (int64); None: to none.

    Column c has the nodes of entry c // repeat.
    """

    rows: int
    columns: int
    repeat: int = 1
    row_out: Tensor | None = None
    row_into: Tensor | None = None
    column_out: Tensor | None = None
    column_into: Tensor | None = None

    @cached_property
    def places(self) -> tuple[int | None, ...]:
        """Where the numbers lie."""
        pieces = -(-self.columns // self.repeat)
        rows = (address(n, torch.int64, self.rows) for n in (self.row_out, self.row_into))
        return *rows, *(
            address(n, torch.int64, pieces) for n in (self.column_out, self.column_into)
        )

    @cached_property
    def varies(self) -> tuple[bool, bool]:
        """Whether rows, and columns, differ by their nodes."""
        rows, columns = (self.row_out, self.row_into), (self.column_out, self.column_into)
        return any(n is not None for n in rows), any(n is not None for n in columns)


@dataclass(frozen=True)
class Outer:
    """The matrix rows * columns of two vectors, (n, 1) and (1, m), that is never written out."""

    rows: Tensor
    columns: Tensor

    @property
    def shape(self) -> torch.Size:
        """Of the matrix."""
        return torch.Size((len(self.rows), self.columns.shape[1]))

    def dense(self) -> Tensor:
        """The matrix."""
        return self.rows * self.columns


def dense(values: Tensor | Outer) -> Tensor:
    """As one tensor."""
    return values.dense() if isinstance(values, Outer) else values


@dataclass(frozen=True)
class Whitening:
    """What is to be whitened: kappa as a matrix that broadcasts to the parameter's, or as an `Outer`."""

    kappa: Tensor | Outer
    lines: Lines
    last: Tensor | Outer | None = None
    """An earlier result that nobody needs any more; it is written over where it fits."""
    in_place: bool = False
    """Whether the result may take the place of kappa, where their types agree: nobody needs kappa any more."""
    out_side: Tensor | None = None
    """What nodes say to the edges of this parameter that enter them, where it is not what they say to all."""


def whiten(
    wanted: Sequence[Whitening],
    sides: tuple[Tensor, Tensor] | None,
    scale: float,
    dtype: torch.dtype,
) -> list[Tensor | Outer]:
    """min(largest, sqrt(scale) a b / sqrt(kappa)) in `dtype`, 0 where kappa is 0.

    sides: what every node says to edges that enter it, and to those that leave it, float64; None for ones. a and b are
    products of what the nodes of a row and of a column say. Where kappa is an outer product or constant along a
    dimension, so is the result.
    """
    return whiten_and_keep(wanted, sides, scale, dtype)[0]


def whiten_and_keep(
    wanted: Sequence[Whitening],
    sides: tuple[Tensor, Tensor] | None,
    scale: float,
    dtype: torch.dtype,
    log_sizes: Sequence[float | None] = (),
) -> tuple[list[Tensor | Outer], Whiten | None, set[int]]:
    """The same; the call that did it, None where torch did; and the numbers of the results that have their size.

    log_sizes: for each result the mean of its logarithms that one more factor is to give it, or None. Only the kernel
    does that, and only where there is such a mean.
    """
    tensors = [t for w in wanted for t in _tensors(w.kappa)]
    kinds = _FROM.get(dtype, ())
    if not all(t.dtype in kinds for t in tensors) or not native.accepts(
        *tensors, *sides or (), *(w.out_side for w in wanted)
    ):
        return [by_torch(w, sides, scale, dtype) for w in wanted], None, set()
    call = Whiten(wanted, sides, dtype)
    lost, sized = call.run(sides, scale, log_sizes)
    if not lost:
        return call.results, call, sized
    results = list(call.results)
    for k in lost:
        results[k] = by_torch(wanted[k], sides, scale, dtype)
    return results, None, sized - lost


class Whiten:
    """The kernel's arguments for some parameters, and its results.

    They may serve again with other numbers of the same shapes: for a small net, to prepare a call takes longer than
    the call. Every tensor that is handed over is looked at in every call.
    """

    def __init__(
        self, wanted: Sequence[Whitening], sides: tuple[Tensor, Tensor] | None, dtype: torch.dtype
    ) -> None:
        held: list[Tensor] = []  # until the kernel is done
        self._dtype, self._nodes = dtype, None if sides is None else len(sides[0])
        prepared = [_prepare(w, self._nodes, dtype, held) for w in wanted]
        self.results = [result for _, result in prepared]
        self._jobs = (WhitenJob * len(wanted))(*(job for job, _ in prepared))  # type: ignore[misc]
        self._call = WhitenCall(len(wanted), 0, None, None, 0.0, ctypes.addressof(self._jobs))
        self._held, self._lines = held, [w.lines for w in wanted]  # whose addresses the jobs have
        self._has_kappas = True
        self._rooms = [t for result in self.results for t in _tensors(result)]
        self._seen = native.seen(self._rooms)
        self._sizes = [[(t.dtype, t.numel()) for t in _tensors(w.kappa)] for w in wanted]
        places = [[t.data_ptr() for t in _tensors(w.kappa)] for w in wanted]
        taken = [
            [at for at in (job.kappa, job.column_kappa) if at is not None] for job in self._jobs
        ]
        # A kappa that had to be written out, or nodes with more to say than `sides`: prepared anew each time.
        # So are kappas whose places the results have taken.
        kept = all(w.out_side is None and not _may_overwrite(w, dtype) for w in wanted)
        self.may_serve = places == taken and kept

    def serves(self, kappas: Sequence[Tensor | Outer], sides: tuple[Tensor, Tensor] | None) -> bool:
        """Put these in the places of the kappas where they have their types and sizes; False if they have not."""
        if not self.may_serve or (None if sides is None else len(sides[0])) != self._nodes:
            return False
        if self._seen != native.seen(self._rooms):
            return False
        if not native.accepts(*(t for kappa in kappas for t in _tensors(kappa)), *sides or ()):
            return False
        for kappa, job, sizes in zip(kappas, self._jobs, self._sizes, strict=True):
            tensors = _tensors(kappa)
            if len(tensors) != len(sizes):
                return False
            for t, (dtype, size) in zip(tensors, sizes):
                if t.dtype is not dtype or t.numel() != size or not t.is_contiguous():
                    return False
            if len(tensors) == 2:
                job.kappa, job.column_kappa = tensors[0].data_ptr(), tensors[1].data_ptr()
            elif job.kappa is not None:
                job.kappa = tensors[0].data_ptr()
            else:
                job.column_kappa = tensors[0].data_ptr()
        self._held, self._has_kappas = [t for kappa in kappas for t in _tensors(kappa)], True
        return True

    def run(
        self,
        sides: tuple[Tensor, Tensor] | None,
        scale: float,
        log_sizes: Sequence[float | None] = (),
    ) -> tuple[set[int], set[int]]:
        """Write the results; returns the numbers of those that the range of `dtype` lost, and of those with a size.

        The kappas are then forgotten (those of a net's kernels are as large as its weights): `serves` puts in others.
        """
        if not self._has_kappas:
            raise RuntimeError("the kappas of this call have been used: give it others by `serves`")
        if sides is not None:
            dense = [s.contiguous() for s in sides]
            places = (address(s, torch.float64, len(dense[0])) for s in dense)
            self._call.out_side, self._call.into_side = places
        for job, size in itertools.zip_longest(self._jobs, log_sizes):
            job.log_size = math.nan if size is None else size
        self._call.threads, self._call.scale = native.thread_count(), scale
        native.call("whiten", self._call, self._dtype)
        self._held, self._has_kappas = [], False
        lost = {
            k
            for k, r in enumerate(self.results)
            if isinstance(r, Outer) and self._jobs[k].least < _LEAST
        }
        return lost, {k for k, job in enumerate(self._jobs) if job.is_sized}


def _tensors(kappa: Tensor | Outer) -> tuple[Tensor, ...]:
    return (kappa.rows, kappa.columns) if isinstance(kappa, Outer) else (kappa,)


def _prepare(
    w: Whitening, count: int | None, dtype: torch.dtype, held: list[Tensor]
) -> tuple[tuple[Any, ...], Tensor | Outer]:
    """A job for the kernel, and the room for its result. count: of the nodes, None where they say nothing."""
    lines, kappa = w.lines, w.kappa
    nodes, varies = _NO_NODES, (False, False)
    if count is not None:
        nodes = (
            None if w.out_side is None else address(w.out_side, torch.float64, count),
            *lines.places,
        )
        varies = lines.varies
    if isinstance(kappa, Tensor) and 1 not in kappa.shape:
        to = (
            kappa if _may_overwrite(w, dtype) else _room(w.last, (lines.rows, lines.columns), dtype)
        )
        place = _place(kappa, lines.rows, lines.columns, held)
        is_double = kappa.dtype is torch.float64
        return (
            lines.rows,
            lines.columns,
            lines.repeat,
            _MATRIX,
            is_double,
            place,
            None,
            *nodes,
            to.data_ptr(),
        ), to
    by_row, by_column = _factors(kappa)
    high = varies[0] or (by_row is not None and len(by_row) > 1)
    wide = varies[1] or (by_column is not None and by_column.shape[1] > 1)
    rows, columns = lines.rows if high else 1, lines.columns if wide else 1
    at_rows = None if by_row is None else _place(by_row.expand(rows, 1), rows, 1, held)
    at_columns = (
        None if by_column is None else _place(by_column.expand(1, columns), 1, columns, held)
    )
    is_double = _tensors(kappa)[0].dtype is torch.float64
    job = (rows, columns, lines.repeat, _OUTER, is_double, at_rows, at_columns, *nodes)
    last = _tensors(w.last) if w.last is not None else (None,)
    if high and wide:
        result = Outer(_room(last[0], (rows, 1), dtype), _room(last[-1], (1, columns), dtype))
        return (*job, result.rows.data_ptr(), result.columns.data_ptr()), result
    to = _room(last[0], (rows, columns), dtype)
    return (*job, *((None, to.data_ptr()) if wide else (to.data_ptr(), None))), to


def _may_overwrite(w: Whitening, dtype: torch.dtype) -> bool:
    kappa = w.kappa
    return (
        w.in_place and isinstance(kappa, Tensor) and kappa.dtype is dtype and kappa.is_contiguous()
    )


def _factors(kappa: Tensor | Outer) -> tuple[Tensor | None, Tensor | None]:
    """kappa as the product of one number for each row and one for each column."""
    if isinstance(kappa, Outer):
        return kappa.rows, kappa.columns
    return (kappa, None) if kappa.shape[1] == 1 else (None, kappa)


def _place(tensor: Tensor, rows: int, columns: int, held: list[Tensor]) -> int | None:
    if not tensor.is_contiguous():
        tensor = tensor.contiguous()
    held.append(tensor)
    return address(tensor, tensor.dtype, rows, columns)


def _room(last: Tensor | Outer | None, shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
    """The last result where it has this shape, else new memory."""
    fits = (
        isinstance(last, Tensor)
        and last.shape == shape
        and last.dtype is dtype
        and last.is_contiguous()
    )
    if fits and native.accepts(last):  # type: ignore[arg-type]
        return last  # type: ignore[return-value]
    return torch.empty(shape, dtype=dtype)


def by_torch(
    w: Whitening, sides: tuple[Tensor, Tensor] | None, scale: float, dtype: torch.dtype
) -> Tensor:
    """`whiten` in torch alone."""
    kappa = (
        w.kappa if isinstance(w.kappa, Tensor) else w.kappa.rows.double() * w.kappa.columns
    ).double()
    root = torch.where(kappa > 0, (scale / kappa).sqrt(), 0.0)
    if sides is not None:
        for factors in _node_factors(
            w.lines, sides[0] if w.out_side is None else w.out_side, sides[1]
        ):
            root = root * factors
    return root.clamp(max=torch.finfo(dtype).max).to(dtype)


def _node_factors(lines: Lines, out_side: Tensor, into_side: Tensor) -> list[Tensor]:
    factors = []
    for nodes, side in ((lines.row_out, out_side), (lines.row_into, into_side)):
        if nodes is not None:
            factors.append(side[nodes.to(side.device)][:, None])
    for nodes, side in ((lines.column_out, out_side), (lines.column_into, into_side)):
        if nodes is not None:
            columns = side[nodes.to(side.device)].repeat_interleave(lines.repeat)
            factors.append(columns[None, : lines.columns])
    return factors
