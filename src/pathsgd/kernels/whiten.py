"""1/sqrt(K) of many parameters, and the factors of nodes in it.

    w = min(largest, sqrt(scale) a b / sqrt(kappa)), 0 where kappa is 0

a and b are products of the factors of a row's and a column's nodes. Where kappa is an outer product
or constant along a dimension, so is w.
"""

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

Factors = tuple[Tensor, Tensor]
"""Of every node: for the edges that enter it, and for those that leave it; float64."""

_MATRIX, _OUTER = range(2)  # `Form` of whiten.h
_KAPPA_TYPES = {torch.float32: (torch.float32, torch.float64), torch.float64: (torch.float64,)}
"""The types of kappa that the kernel takes, by that of the result."""
_LEAST = 1e-30
"""A factor below this share of its vector's largest might be lost in float32: the whole matrix
is written then."""


class FlowSidesCall(ctypes.Structure):
    _fields_ = [("count", INT), *fields(POINTER, "flow least out into"), ("exponent", REAL)]


class WhitenJob(ctypes.Structure):
    _fields_ = [
        *fields(INT, "rows columns repeat form is_double"),
        *fields(POINTER, "kappa column_kappa out_side"),
        *fields(POINTER, "row_out row_into column_out column_into to to_columns"),
        *(("least", REAL), ("log_size", REAL), ("is_sized", INT)),
    ]  # fmt: skip


class WhitenCall(ctypes.Structure):
    _fields_ = [
        *fields(INT, "count threads"),
        *fields(POINTER, "out_side into_side"),
        *(("scale", REAL), ("jobs", POINTER)),
    ]


def flow_sides(flow: Tensor, least: Tensor, exponent: float) -> Factors:
    """The factors (n,) of n nodes for the edges that enter them, and for those that leave them.

        into = max(flow, least)^exponent
        out = into * sqrt(flow / max(flow, least)), into where flow is 0

    flow: path flow through every node, float64. least: its lower bound. Returns (out, into).
    """
    if not native.accepts(flow, least, dtype=torch.float64):
        return flow_sides_by_torch(flow, least, exponent)
    flow, least, count = flow.detach().contiguous(), least.detach().contiguous(), flow.numel()
    out, into = torch.empty_like(flow), torch.empty_like(flow)
    places = (address(t, torch.float64, count) for t in (flow, least, out, into))
    native.call("flow_sides", FlowSidesCall(count, *places, exponent), torch.float64)
    return out, into


def flow_sides_by_torch(flow: Tensor, least: Tensor, exponent: float) -> Factors:
    """`flow_sides` in torch alone."""
    bounded = torch.maximum(flow, least)
    into = bounded.sqrt().sqrt() if exponent == 0.25 else bounded**exponent
    return torch.where(flow > 0, (flow / bounded).sqrt(), 1.0) * into, into


@dataclass(frozen=True)
class Lines:
    """A parameter as a matrix whose rows and columns lead to and from nodes.

    Nodes are given by their numbers (int64); None: to none.

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
        """The addresses of the nodes' numbers."""
        entries = -(-self.columns // self.repeat)
        rows = (address(n, torch.int64, self.rows) for n in (self.row_out, self.row_into))
        columns = (address(n, torch.int64, entries) for n in (self.column_out, self.column_into))
        return *rows, *columns

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
class WhitenRequest:
    """One parameter to whiten.

    Its kappa, a matrix that broadcasts to the parameter's or an `Outer`.
    """

    kappa: Tensor | Outer
    lines: Lines
    last: Tensor | Outer | None = None
    """An earlier result that nobody needs any more; it is written over where it fits."""
    in_place: bool = False
    """Whether the result may take the place of kappa, where their types agree: nobody needs
    kappa any more."""
    out_side: Tensor | None = None
    """This parameter's own factors for the edges that enter a node."""

    def overwrites(self, dtype: torch.dtype) -> bool:
        """Whether the result takes the place of kappa."""
        kappa = self.kappa
        if not self.in_place or isinstance(kappa, Outer):
            return False
        return kappa.dtype is dtype and kappa.is_contiguous()


def whiten(
    requests: Sequence[WhitenRequest], sides: Factors | None, scale: float, dtype: torch.dtype
) -> list[Tensor | Outer]:
    """1/sqrt(K) of every request in `dtype`. sides: the factors of every node, None for ones."""
    return whiten_and_keep(requests, sides, scale, dtype)[0]


def whiten_and_keep(
    requests: Sequence[WhitenRequest],
    sides: Factors | None,
    scale: float,
    dtype: torch.dtype,
    log_sizes: Sequence[float | None] = (),
) -> tuple[list[Tensor | Outer], PreparedWhiten | None, set[int]]:
    """The same; the call that did it, None where torch did.

    And the numbers of the results that have their size.

    log_sizes: for each result the mean of its logarithms that one more factor is to give it, or
    None. Only the kernel does that, and only where there is such a mean.
    """
    kappas = [t for r in requests for t in _tensors(r.kappa)]
    others = *(sides or ()), *(r.out_side for r in requests)
    types = _KAPPA_TYPES.get(dtype, ())
    if not all(t.dtype in types for t in kappas) or not native.accepts(*kappas, *others):
        return [by_torch(r, sides, scale, dtype) for r in requests], None, set()
    call = PreparedWhiten(requests, sides, dtype)
    lost, sized = call.run(sides, scale, log_sizes)
    if not lost:
        return call.results, call, sized
    results = list(call.results)
    for k in lost:
        results[k] = by_torch(requests[k], sides, scale, dtype)
    return results, None, sized - lost


class PreparedWhiten:
    """The kernel's arguments for some parameters, and its results.

    They may serve again with other numbers of the same shapes: for a small net, to prepare a call
    takes longer than the call. Every tensor that is handed over is looked at in every call.
    """

    def __init__(
        self, requests: Sequence[WhitenRequest], sides: Factors | None, dtype: torch.dtype
    ) -> None:
        self._held: list[Tensor] = []  # until the kernel is done
        self._dtype, self._nodes = dtype, None if sides is None else len(sides[0])
        prepared = [_prepare(r, self._nodes, dtype, self._held) for r in requests]
        self.results = [result for _, result in prepared]
        self._jobs = (WhitenJob * len(requests))(*(job for job, _ in prepared))  # type: ignore[misc]
        self._call = WhitenCall(len(requests), 0, None, None, 0.0, ctypes.addressof(self._jobs))
        self._lines = [r.lines for r in requests]  # whose addresses the jobs have
        self._has_kappas = True
        self._written = [t for result in self.results for t in _tensors(result)]
        self._seen = native.seen(self._written)
        self._kinds = [_kinds(r.kappa) for r in requests]
        given = [[t.data_ptr() for t in _tensors(r.kappa)] for r in requests]
        taken = [[at for at in (j.kappa, j.column_kappa) if at is not None] for j in self._jobs]
        # A kappa that had to be written out, or nodes with factors of their own: prepared anew each
        # time.
        # So are kappas whose places the results have taken.
        own = any(r.out_side is not None or r.overwrites(dtype) for r in requests)
        self.may_serve = given == taken and not own

    def serves(self, kappas: Sequence[Tensor | Outer], sides: Factors | None) -> bool:
        """Put these in the places of the kappas where they have their types and sizes.

        False if they have not.
        """
        nodes = None if sides is None else len(sides[0])
        tensors = [t for kappa in kappas for t in _tensors(kappa)]
        if (
            not self.may_serve
            or nodes != self._nodes
            or self._seen != native.seen(self._written)
            or not native.accepts(*tensors, *sides or ())
            or self._kinds != [*map(_kinds, kappas)]
            or not all(map(Tensor.is_contiguous, tensors))
        ):
            return False
        places = iter(tensors)
        for job in self._jobs:
            if job.kappa is not None:
                job.kappa = next(places).data_ptr()
            if job.column_kappa is not None:
                job.column_kappa = next(places).data_ptr()
        self._held, self._has_kappas = tensors, True
        return True

    def run(
        self, sides: Factors | None, scale: float, log_sizes: Sequence[float | None] = ()
    ) -> tuple[set[int], set[int]]:
        """Write the results; returns the numbers of those lost, and of those with a size.

        Lost is what the range of `dtype` cannot hold.

        The kappas are then forgotten (those of convolutions are as large as their weights):
        `serves` puts in others.
        """
        if not self._has_kappas:
            raise RuntimeError("the kappas of this call have been used: give it others by `serves`")
        if sides is not None:
            dense_sides = [side.contiguous() for side in sides]
            places = (address(side, torch.float64, len(dense_sides[0])) for side in dense_sides)
            self._call.out_side, self._call.into_side = places
        for job, size in itertools.zip_longest(self._jobs, log_sizes):
            job.log_size = math.nan if size is None else size
        self._call.threads, self._call.scale = native.thread_count(), scale
        native.call("whiten", self._call, self._dtype)
        self._held, self._has_kappas = [], False
        jobs = [*enumerate(self._jobs)]
        lost = {k for k, j in jobs if isinstance(self.results[k], Outer) and j.least < _LEAST}
        return lost, {k for k, job in jobs if job.is_sized}


def _tensors(kappa: Tensor | Outer) -> tuple[Tensor, ...]:
    return (kappa.rows, kappa.columns) if isinstance(kappa, Outer) else (kappa,)


def _kinds(kappa: Tensor | Outer) -> list[tuple[torch.dtype, int]]:
    return [(t.dtype, t.numel()) for t in _tensors(kappa)]


def _prepare(
    r: WhitenRequest, count: int | None, dtype: torch.dtype, held: list[Tensor]
) -> tuple[tuple[Any, ...], Tensor | Outer]:
    """A job for the kernel, and the room for its result.

    Count: of the nodes, None where they have no factors.
    """
    lines, kappa = r.lines, r.kappa
    nodes: tuple[int | None, ...] = (None,) * 5
    varies = (False, False)
    if count is not None:
        nodes = address(r.out_side, torch.float64, count), *lines.places
        varies = lines.varies
    is_double = _tensors(kappa)[0].dtype is torch.float64
    if isinstance(kappa, Tensor) and 1 not in kappa.shape:
        shape = lines.rows, lines.columns
        to = kappa if r.overwrites(dtype) else _room(r.last, shape, dtype)
        place = _place(kappa, *shape, held)
        return (*shape, lines.repeat, _MATRIX, is_double, place, None, *nodes, to.data_ptr()), to
    by_row, by_column = _vectors(kappa)
    high = varies[0] or (by_row is not None and len(by_row) > 1)
    wide = varies[1] or (by_column is not None and by_column.shape[1] > 1)
    rows, columns = lines.rows if high else 1, lines.columns if wide else 1
    at_rows = None if by_row is None else _place(by_row.expand(rows, 1), rows, 1, held)
    at_columns = (
        None if by_column is None else _place(by_column.expand(1, columns), 1, columns, held)
    )
    job = (rows, columns, lines.repeat, _OUTER, is_double, at_rows, at_columns, *nodes)
    last = _tensors(r.last) if r.last is not None else (None,)
    if high and wide:
        result = Outer(_room(last[0], (rows, 1), dtype), _room(last[-1], (1, columns), dtype))
        return (*job, result.rows.data_ptr(), result.columns.data_ptr()), result
    to = _room(last[0], (rows, columns), dtype)
    return (*job, *((None, to.data_ptr()) if wide else (to.data_ptr(), None))), to


def _vectors(kappa: Tensor | Outer) -> tuple[Tensor | None, Tensor | None]:
    """kappa as the product of one number for each row and one for each column."""
    if isinstance(kappa, Outer):
        return kappa.rows, kappa.columns
    return (kappa, None) if kappa.shape[1] == 1 else (None, kappa)


def _place(tensor: Tensor, rows: int, columns: int, held: list[Tensor]) -> int | None:
    held.append(tensor.contiguous())
    return address(held[-1], tensor.dtype, rows, columns)


def _room(last: Tensor | Outer | None, shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
    """The last result where it has this shape, else new memory."""
    if not isinstance(last, Tensor) or last.shape != shape or not last.is_contiguous():
        return torch.empty(shape, dtype=dtype)
    return last if native.accepts(last, dtype=dtype) else torch.empty(shape, dtype=dtype)


def by_torch(r: WhitenRequest, sides: Factors | None, scale: float, dtype: torch.dtype) -> Tensor:
    """`whiten` of one request in torch alone.

    In float64, rounded once, nothing kept as an outer product.
    """
    kappa = (
        r.kappa.double() if isinstance(r.kappa, Tensor) else r.kappa.rows.double() * r.kappa.columns
    )
    root = torch.where(kappa > 0, (scale / kappa).sqrt(), 0.0)
    if sides is not None:
        for factors in _node_factors(
            r.lines, sides[0] if r.out_side is None else r.out_side, sides[1]
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
