"""1/sqrt(K) of every parameter, K the metric of choice (choice.py), from one measurement.

    whitened gradient     u = grad / sqrt(K),    step = -lr * u / sqrt(K)
    dual norm             |u|_2

Under a rescaling p_i -> c_i p_i, kappa_i -> kappa_i / c_i^2 while gamma^2 and path flow stay: so do u, its norm and
whatever is computed from them. Parameters that no rescaling changes keep the Euclidean metric, K = 1, except under the
paper's, which divides every gradient by its kappa.

A parameter that no path to a measured output uses has the Euclidean metric too: only the loss reads it, or what is
not measured. kappa = 0 of an entry on a path means that the path has no weight now: no step, and no NaN.
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
    flow_sides,
    whiten_and_keep,
)
from pathsgd.metric.biases import held_back
from pathsgd.metric.choice import Metric, PaperMetric
from pathsgd.metric.geometry import Measure
from pathsgd.network.node_spaces import NodeSpaces

LEAST_FLOW = 1e-1
"""Lower bound on path flow, in shares of what a unit of its layer has on average.

Through a unit with tiny outgoing weights next to nothing flows: without a bound its incoming weights would take steps
without limit, and a unit whose outgoing weights are zero could never start learning. Flow does not change when units
are rescaled, so neither does what is computed with the bound.
"""
WhiteningOf = Tensor | Outer
"""1/sqrt(K) of one parameter: broadcastable to its shape, or an outer product that is."""
LARGE = 1 << 18
"""Numbers from which on a matrix is large."""
_CPU = torch.device("cpu")
_ONE = torch.ones(1, dtype=torch.float64)
_LARGEST = 1e150
"""Upper bound on 1/sqrt(K) in float64: its square is finite."""


def path_flow(measured: Measure, parameters: Mapping[str, Tensor]) -> Tensor:
    """phi of every node: the share of path mass that enters it, sum of q * kappa1 / gamma^2 over its incoming edges.

    Node 0 stands for inputs and outputs, phi = 1. Returns (free nodes + 1,).
    """
    device = next(iter(parameters.values())).device
    if device == _CPU and measured.flow and measured.spaces.are_all_in_order(tuple(measured.flow)):
        return torch.cat(
            [_ONE, *measured.flow.values()]
        )  # as recurrent layers have it: no node has to be looked up
    phi = torch.zeros(measured.spaces.count + 1, dtype=torch.float64, device=device)
    for name, through in measured.flow.items():
        phi.index_copy_(
            0, measured.spaces.edges_on(name, device).target.reshape(-1), through.to(device)
        )
    for name in measured.kappa1 if not measured.flow else ():
        if measured.is_free(name):
            _add_entering(phi, measured, name, parameters[name])
    phi[:1].fill_(1.0)
    return phi


def _add_entering(sums: Tensor, measured: Measure, name: str, p: Tensor) -> None:
    """Add to the sum of each node what one parameter brings into it."""
    out = measured.spaces.edges_on(name, sums.device).target
    if name in measured.mass and out.shape[1] == 1:
        rows = measured.mass[name].to(sums.device)
        sums.index_add_(0, out.reshape(-1).expand(len(rows)), rows)
        return
    kappa1 = dense(measured.kappa1[name])
    p = p if is_sharded(kappa1) else whole(p)
    mass = p.detach().to(sums.device, torch.float64).square() * kappa1
    # Sum over the dimensions in which the target does not change before scattering: one row per unit.
    dims = [d for d in range(mass.dim()) if out.shape[d] == 1 and mass.shape[d] > 1]
    mass = whole(mass.sum(dims, keepdim=True) if dims else mass)
    sums.scatter_add_(0, out.expand(mass.shape).reshape(-1), mass.reshape(-1))


def flow_at_places(measured: Measure, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """phi of every node as it is where a parameter enters, for those that enter at places of their own.

        sum over all that enters the node, of mass * min(1, delta / its own delta)

    delta: the derivative in what enters at a place. Of what entered earlier, where more lay ahead, as much counts as
    goes on past this place. Where all enter at one place it is phi.
    """
    names = [name for name in measured.ahead if name in measured.kappa1 and measured.is_free(name)]
    if not names:
        return {}
    delta = torch.stack([measured.ahead[name] for name in names])
    mass = torch.zeros_like(delta)
    for row, name in zip(mass, names):
        _add_entering(row, measured, name, parameters[name])
    others = torch.zeros_like(delta[0])
    for name in measured.kappa1:
        if name not in measured.ahead and measured.is_free(name):
            _add_entering(others, measured, name, parameters[name])
    flow = _past(delta, mass) + others
    flow[:, :1].fill_(1.0)
    return dict(zip(names, flow))


def _past(delta: Tensor, mass: Tensor) -> Tensor:
    """The sums of mass * min(1, delta / its own delta), (places, nodes) as both are."""
    if (
        delta.is_cpu
    ):  # most nodes are entered at one place; a device would have to be waited for to know which
        several = ((delta > 0).sum(0) > 1).nonzero()[:, 0]
        past = mass.clone()
        past[:, several] = _past_several(delta[:, several], mass[:, several])
        return past
    return _past_several(delta, mass)


def _past_several(delta: Tensor, mass: Tensor) -> Tensor:
    delta, order = delta.sort(0, descending=True)
    mass = mass.gather(0, order)
    past = delta * torch.where(delta > 0, mass / delta, 0.0).cumsum(0)
    past[:-1] += mass.flip(0).cumsum(0).flip(0)[1:]
    return torch.empty_like(past).scatter_(0, order, past)


def _flow_power(
    measured: Measure, parameters: Mapping[str, Tensor], exponent: float
) -> Tensor | None:
    """phi^exponent of every node; None for ones, also where no path mass is there to have shares of."""
    if exponent == 0 or measured.log_gamma_sq == -math.inf:
        return None
    return _bounded(path_flow(measured, parameters), measured) ** exponent


def _bounded(flow: Tensor, measured: Measure) -> Tensor:
    return torch.maximum(flow, _least(measured, flow.device))


def _least(measured: Measure, device: torch.device) -> Tensor:
    return measured.spaces.shares_on(device) * LEAST_FLOW


@dataclass(frozen=True)
class _Sides:
    """What 1/sqrt(kappa) is multiplied by for the unit that an edge enters, and for the unit that it leaves.

        phi^(rho/4) each, phi bounded from below

    Where the bound holds, an edge that enters the unit counts as though as much flowed through it as the bound says:
    its kappa in proportion. So the step of a weight stays a bounded share of it, however little leaves the unit. That
    is asked where the edge enters: a unit of a residual stream may have next to nothing ahead of it after the last
    block, whatever it carried before.
    """

    out: Tensor
    into: Tensor
    shares: Mapping[str, Tensor]
    """sqrt(flow / bounded) for parameters that enter at places of their own."""

    @classmethod
    def of(cls, measured: Measure, parameters: Mapping[str, Tensor], rho: float) -> _Sides | None:
        if rho == 0 or measured.log_gamma_sq == -math.inf:
            return None
        flow = path_flow(measured, parameters)
        shares = {
            name: _share(there, measured)
            for name, there in flow_at_places(measured, parameters).items()
        }
        return cls(*flow_sides(flow, _least(measured, flow.device), rho / 4), shares)

    def for_all(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """What each node says to edges that enter it, and to those that leave it."""
        return self.out.to(device), self.into.to(device)

    def at_place(self, name: str, device: torch.device) -> Tensor | None:
        """The first of a parameter that enters at a place of its own."""
        return (self.shares[name] * self.into).to(device) if name in self.shares else None


def _share(flow: Tensor, measured: Measure) -> Tensor:
    """sqrt(flow / bounded); 1 where nothing flows at all."""
    return torch.where(flow > 0, (flow / _bounded(flow, measured)).sqrt(), 1.0)


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
    """1/sqrt(K) of every parameter, broadcastable to its shape; of the relative metric where `metric` is absolute.

    Zero where a path has no weight, and never infinite: inf * 0 would be no step. Kept at size 1 where it is constant.

    log_unit: the paper's kappa is counted in exp(log_unit).
    dtype: of the results; None for what each parameter's step is computed in.
    last: an earlier result that nobody needs any more; it is written over where it fits.
    log_sizes: the sizes of the absolute metric, where they are known; `Whitenings.sized` has those that were given.
    """
    log_sizes = log_sizes or {}
    # e^709: the largest in float64
    scale = math.exp(min(metric.unit * (log_unit - measured.log_scale), 709.0))
    is_free = measured.free is None or bool(measured.free)  # else no unit has a factor
    sides = _Sides.of(measured, parameters, metric.rho) if is_free else None
    made, prepared = None, last.prepared if isinstance(last, Whitenings) else None
    if prepared is not None:
        made = prepared.again(measured, parameters, dtype, sides, scale, log_sizes)
    if made is None:
        everywhere = metric.is_everywhere
        made = _whiten(measured, parameters, dtype, sides, scale, last or {}, log_sizes, everywhere)
    if metric.bounds_biases and not measured.is_plain:
        # A common factor of what has a size already would change nothing.
        for bias, factor in held_back(made, measured, parameters, made.sized):
            if isinstance(factor, float) and factor == 1:
                continue
            root, is_own = made[bias], made.prepared is not None and bias in made.prepared.names
            # In place, so that what works on the tensor finds it where it was; a constant is kept.
            in_place = is_own and isinstance(root, Tensor)
            made[bias] = root.mul_(factor) if in_place else dense(root) * factor  # type: ignore[union-attr]
    return made


class Whitenings(dict[str, WhiteningOf]):
    """1/sqrt(K) by name; what was prepared to make them; the names of those that have their absolute size."""

    prepared: _Prepared | None = None
    sized: frozenset[str] = frozenset()


@dataclass(frozen=True)
class _Prepared:
    """A call that makes the whitenings of the same parameters of the same net again.

    results: the whitenings that it writes over, by name, and those that are constant.
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
        sides: _Sides | None,
        scale: float,
        log_sizes: Mapping[str, float],
    ) -> Whitenings | None:
        """The whitenings at another point; None where more than numbers has changed."""
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
    sides: _Sides | None,
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
            # Of what is spread over processes one after another is made whole.
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
    sides: _Sides | None,
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
    """Whether a matrix is written out and so large that its memory counts: two of a net's kernels are too many."""
    return (
        isinstance(values, Tensor)
        and values.is_cpu
        and values.dim() > 0
        and values.numel() >= LARGE
    )


def _as_parameter(root: WhiteningOf, shape: torch.Size, last: WhiteningOf | None) -> WhiteningOf:
    """A matrix that was whitened, broadcastable to the parameter again; the last one itself where that has it."""
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
    """`value` in a tensor of size 1 that has as many dimensions as `like`; the last one if it is that."""
    # On another device to look at the last one would mean to wait for it.
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
    weight = _flow_power(measured, parameters, (metric.rho - 1) / 4)
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
