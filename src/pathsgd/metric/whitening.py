"""1/sqrt(K) of every parameter, K the metric of choice (choice.py), from one measurement.

    whitened gradient     u = grad / sqrt(K),    step = -lr * u / sqrt(K)
    dual norm             |u|_2

A rescaling p_i -> c_i p_i takes kappa_i to kappa_i / c_i^2 and preserves gamma^2 and path flow
(flow.py). So u, its norm and all results computed from them are invariant. Parameters that no
rescaling changes keep the Euclidean metric, K = 1, except under the paper's metric, which divides
every gradient by its kappa.

A parameter on no path to a measured output has the Euclidean metric too: only the loss or an output
that is not measured reads it. kappa = 0 of an entry on a path means that its paths have no weight
now: no step, and no NaN.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from pathsgd.distributed.spread import is_sharded, parted, whole
from pathsgd.kernels.update import compute_dtype
from pathsgd.kernels.whiten import (
    Outer,
    PreparedWhiten,
    WhitenRequest,
    dense,
    whiten_and_keep,
)
from pathsgd.metric.biases import held_back
from pathsgd.metric.choice import Metric, PaperMetric
from pathsgd.metric.flow import Sides, flow_power
from pathsgd.metric.geometry import Measure
from pathsgd.network.node_spaces import NodeSpaces

WhiteningOf = Tensor | Outer
"""1/sqrt(K) of one parameter: broadcastable to its shape, or an outer product that is."""
LARGE = 1 << 18
"""Number of entries from which a matrix counts as large."""
_CPU = torch.device("cpu")
_LARGEST = 1e150
"""Upper bound on 1/sqrt(K) in float64: its square is finite."""


def whitenings(
    measured: Measure,
    parameters: Mapping[str, Tensor],
    metric: Metric | PaperMetric,
    *,
    log_unit: float = 0.0,
    dtype: torch.dtype | None = None,
    last: Mapping[str, WhiteningOf] | None = None,
    log_sizes: Mapping[str, float] | None = None,
) -> Whitenings:
    """1/sqrt(K) of every parameter, broadcastable to its shape.

    An absolute `metric` gives the relative one's whitenings, unless `log_sizes` has their sizes.
    Entries are 0 where a path has no weight, and never infinite, because inf * 0 would be NaN.
    Constant whitenings stay of size 1.

    log_unit: the paper's kappa is in units of exp(log_unit).
    dtype: of the results; None for the dtype that each parameter's step is computed in.
    last: an earlier result that is no longer needed; overwritten where it fits.
    log_sizes: known sizes of the absolute metric; `Whitenings.sized` names those applied.
    """
    log_sizes = log_sizes or {}
    # e^709: the largest in float64
    scale = math.exp(min(metric.unit * (log_unit - measured.log_scale), 709.0))
    is_free = measured.free is None or bool(measured.free)  # else no unit has a factor
    sides = Sides.of(measured, parameters, metric.rho) if is_free else None
    made, prepared = None, last.prepared if isinstance(last, Whitenings) else None
    if prepared is not None:
        made = prepared.again(measured, parameters, dtype, sides, scale, log_sizes)
    if made is None:
        everywhere = metric.is_everywhere
        made = _whiten(measured, parameters, dtype, sides, scale, last or {}, log_sizes, everywhere)
    if metric.bounds_biases and not measured.is_plain:
        # Parameters that have their size already would not change under a common factor.
        for bias, factor in held_back(made, measured, parameters, made.sized):
            if isinstance(factor, float) and factor == 1:
                continue
            root, is_own = made[bias], made.prepared is not None and bias in made.prepared.names
            # In place if the prepared call owns the tensor, whose address it keeps.
            in_place = is_own and isinstance(root, Tensor)
            made[bias] = root.mul_(factor) if in_place else dense(root) * factor  # type: ignore[union-attr]
    return made


class Whitenings(dict[str, WhiteningOf]):
    """1/sqrt(K) by name; the prepared call; the names of those with their absolute size."""

    prepared: _Prepared | None = None
    sized: frozenset[str] = frozenset()


@dataclass(frozen=True)
class _Prepared:
    """A call that recomputes the whitenings of the same parameters of the same net.

    results: by name, the whitenings that it overwrites and the constant ones.
    names: of the parameters that it whitens.
    kinds: shapes and dtypes of all parameters.
    shapes: of kappa, of all parameters that have one.
    """

    spaces: NodeSpaces
    dtype: torch.dtype | None
    call: PreparedWhiten
    names: list[str]
    results: dict[str, WhiteningOf]
    kinds: list[tuple[str, torch.Size, torch.dtype]]
    shapes: dict[str, torch.Size]

    def again(
        self,
        measured: Measure,
        parameters: Mapping[str, Tensor],
        dtype: torch.dtype | None,
        sides: Sides | None,
        scale: float,
        log_sizes: Mapping[str, float],
    ) -> Whitenings | None:
        """The whitenings at another point; None if more than values changed."""
        if (
            measured.spaces is not self.spaces
            or dtype is not self.dtype
            or (sides is not None and sides.shares)
        ):
            return None
        if _kinds(parameters) != self.kinds or _shapes(measured) != self.shapes:
            return None
        ends = None if sides is None else sides.for_all(_CPU)
        if not self.call.serves([measured.kappa[name] for name in self.names], ends):
            return None
        lost, sized = self.call.run(ends, scale, [log_sizes.get(name) for name in self.names])
        if lost:
            return None
        made = Whitenings(self.results)
        made.prepared, made.sized = self, frozenset(self.names[k] for k in sized)
        return made


def _kinds(parameters: Mapping[str, Tensor]) -> list[tuple[str, torch.Size, torch.dtype]]:
    return [(name, p.shape, p.dtype) for name, p in parameters.items()]


def _shapes(measured: Measure) -> dict[str, torch.Size]:
    return {name: kappa.shape for name, kappa in measured.kappa.items()}


def _whiten(
    measured: Measure,
    parameters: Mapping[str, Tensor],
    dtype: torch.dtype | None,
    sides: Sides | None,
    scale: float,
    last: Mapping[str, WhiteningOf],
    log_sizes: Mapping[str, float],
    everywhere: bool,
) -> Whitenings:
    result = Whitenings()
    together: dict[tuple[torch.dtype, torch.device, str | None], list[str]] = {}
    for name, p in parameters.items():
        to_dtype = dtype or compute_dtype(p.dtype)
        if name not in measured.kappa or not (everywhere or measured.is_free(name)):
            result[name] = _constant(1.0, p, to_dtype, last.get(name))
        else:
            # Sharded parameters are gathered one at a time.
            together.setdefault((to_dtype, p.device, name if is_sharded(p) else None), []).append(
                name
            )
    for (to_dtype, device, alone), names in together.items():
        wanted = [
            _wanted(measured, name, parameters[name].shape, device, last.get(name), sides)
            for name in names
        ]
        here = None if sides is None else sides.for_all(device)
        sizes = [log_sizes.get(name) for name in names]
        roots, call, sized = whiten_and_keep(wanted, here, scale, to_dtype, sizes)
        for name, root in zip(names, roots):
            made = _as_parameter(root, parameters[name].shape, last.get(name))
            is_full = isinstance(made, Tensor) and made.shape == parameters[name].shape
            result[name] = parted(made, parameters[name]) if is_full else made  # type: ignore[arg-type]
        result.sized |= {names[k] for k in sized}
        if call is not None and call.may_serve and len(together) == 1 and alone is None:
            kinds, shapes = _kinds(parameters), _shapes(measured)
            result.prepared = _Prepared(
                measured.spaces, dtype, call, names, dict(result), kinds, shapes
            )
    return result


def _wanted(
    measured: Measure,
    name: str,
    shape: torch.Size,
    device: torch.device,
    last: WhiteningOf | None,
    sides: Sides | None,
) -> WhitenRequest:
    """A parameter's kappa and edges as those of a matrix."""
    kappa, lines = measured.kappa[name], measured.spaces.lines_on(name, shape, device)
    flat = lines.rows != (shape[0] if shape else 1)
    if isinstance(kappa, Outer):
        kappa = kappa.dense() if flat else kappa
    else:
        kappa = whole(kappa).to(device)
        rows = kappa.shape[0] if kappa.dim() == len(shape) and shape else 1
        if flat or kappa.numel() not in (rows, rows * lines.columns):
            kappa, rows = kappa.expand(shape), lines.rows
        kappa = kappa.reshape(rows, -1)
    if isinstance(last, Tensor):
        last = (
            last.view(len(last) if last.dim() and not flat else 1, -1)
            if last.is_contiguous()
            else None
        )
    out_side = None if sides is None else sides.at_place(name, device)
    return WhitenRequest(
        kappa,
        lines,
        last,
        is_large(kappa) and name in measured.mass and not measured.repeats,
        out_side,
    )


def is_large(values: WhiteningOf) -> bool:
    """Whether this is a dense CPU tensor so large that a second one would take too much memory."""
    return (
        isinstance(values, Tensor)
        and values.is_cpu
        and values.dim() > 0
        and values.numel() >= LARGE
    )


def _as_parameter(root: WhiteningOf, shape: torch.Size, last: WhiteningOf | None) -> WhiteningOf:
    """A whitened matrix as a tensor broadcastable to the parameter; `last` itself if it fits."""
    if isinstance(root, Outer):
        return root
    full = root.numel() == math.prod(shape)
    rows = root.shape[0] if shape and root.shape[0] in (1, shape[0]) else 1
    to = (
        shape
        if full
        else torch.Size(
            [rows, *(shape[1:] if root.shape[1] > 1 else [1] * len(shape[1:]))][: len(shape)]
        )
    )
    if (
        isinstance(last, Tensor)
        and last.is_cpu
        and last.data_ptr() == root.data_ptr()
        and last.shape == to
    ):
        return last
    return root.view(to)


def inverse_metric(
    measured: Measure, parameters: Mapping[str, Tensor], metric: Metric | PaperMetric
) -> dict[str, Tensor]:
    """1/K of every parameter, float64; zero where no path uses it."""
    roots = whitenings(measured, parameters, metric, dtype=torch.float64)
    return {name: dense(root).clamp(max=_LARGEST).square() for name, root in roots.items()}


def _constant(value: float, like: Tensor, dtype: torch.dtype, last: WhiteningOf | None) -> Tensor:
    """A tensor of size 1 with the dimensions of `like` and this value; `last` if it is equal."""
    # Only on the CPU: comparing on another device would synchronise it.
    if (
        isinstance(last, Tensor)
        and last.numel() == 1
        and last.dtype == dtype
        and last.is_cpu
        and float(last) == value
    ):
        return last
    return torch.full([1] * like.dim(), value, dtype=dtype, device=like.device)


def balancing_ratios(
    measured: Measure,
    parameters: Mapping[str, Tensor],
    metric: Metric | PaperMetric,
    names: Container[str],
) -> dict[str, Tensor | None]:
    """sqrt(K at rho = 1) / sqrt(K): takes whitened steps to balanced coordinates; None for ones."""
    weight = flow_power(measured, parameters, (metric.rho - 1) / 4)
    ratios: dict[str, Tensor | None] = {}
    for name in (name for name in measured.kappa if name in names):
        ratio = None
        if weight is not None and measured.is_free(name):
            edges = measured.spaces.edges_on(name, parameters[name].device)
            ratio = weight[edges.target] * weight[edges.source]
            if metric.keeps_size:  # a recurrent matrix: both metrics have mean 1
                ratio = ratio / ratio.log().mean().exp()
        ratios[name] = ratio
    return ratios
