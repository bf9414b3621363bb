"""Path flow through units, and the factors that it gives to the edges at each unit.

phi(node) = sum of q * kappa1 / gamma^2 over incoming edges        q = p^2
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from pathsgd.distributed.spread import is_sharded, whole
from pathsgd.kernels.whiten import dense, flow_sides
from pathsgd.metric.geometry import Measure

LEAST_FLOW = 1e-1
"""Lower bound on path flow, as a share of the mean flow of a unit of its layer.

Almost nothing flows through a unit with tiny outgoing weights. Without a bound the steps of its
incoming weights would be unlimited, and a unit whose outgoing weights are zero could never start
learning. Rescaling units does not change flow, so it does not change results that use the bound.
"""
_CPU = torch.device("cpu")
_ONE = torch.ones(1, dtype=torch.float64)


def path_flow(measured: Measure, parameters: Mapping[str, Tensor]) -> Tensor:
    """phi of every node: the share of path mass that enters it, (free nodes + 1,).

    Node 0 stands for inputs and outputs, phi = 1.
    """
    device = next(iter(parameters.values())).device
    if device == _CPU and measured.flow and measured.spaces.are_all_in_order(tuple(measured.flow)):
        # The case of recurrent layers: no node lookup.
        return torch.cat([_ONE, *measured.flow.values()])
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
    """Add the path mass that one parameter brings into each node to that node's sum."""
    out = measured.spaces.edges_on(name, sums.device).target
    if name in measured.mass and out.shape[1] == 1:
        rows = measured.mass[name].to(sums.device)
        sums.index_add_(0, out.reshape(-1).expand(len(rows)), rows)
        return
    kappa1 = dense(measured.kappa1[name])
    p = p if is_sharded(kappa1) else whole(p)
    mass = p.detach().to(sums.device, torch.float64).square() * kappa1
    # Before scattering, sum the dimensions along which the target is constant: one row per unit.
    dims = [d for d in range(mass.dim()) if out.shape[d] == 1 and mass.shape[d] > 1]
    mass = whole(mass.sum(dims, keepdim=True) if dims else mass)
    sums.scatter_add_(0, out.expand(mass.shape).reshape(-1), mass.reshape(-1))


def flow_at_places(measured: Measure, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """phi of every node where a parameter enters it, for parameters that enter at their own places.

        sum over all that enters the node, of mass * min(1, delta / its own delta)

    delta: the derivative in what enters at a place. Mass that entered earlier, with more of the net
    ahead, counts as far as it flows on past this place. If all enter at one place, this is phi.
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
    # Most nodes are entered at one place. Finding the others would synchronise a device.
    if delta.is_cpu:
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


def flow_power(
    measured: Measure, parameters: Mapping[str, Tensor], exponent: float
) -> Tensor | None:
    """phi^exponent of every node; None for ones, also if no path carries any mass."""
    if exponent == 0 or measured.log_gamma_sq == -math.inf:
        return None
    return _bounded(path_flow(measured, parameters), measured) ** exponent


def _bounded(flow: Tensor, measured: Measure) -> Tensor:
    return torch.maximum(flow, _least(measured, flow.device))


def _least(measured: Measure, device: torch.device) -> Tensor:
    return measured.spaces.shares_on(device) * LEAST_FLOW


@dataclass(frozen=True)
class Sides:
    """Per-node factors of 1/sqrt(kappa) for incoming edges (`out`) and outgoing edges (`into`).

        phi^(rho/4) each, phi bounded from below

    Where the bound is active, the kappa of an edge that enters the unit is raised in proportion, as
    if the bounded flow passed through it. So a weight's step stays a bounded share of the weight,
    however little leaves the unit. In residual streams the bound is applied where an edge enters: a
    unit may have almost nothing ahead of it after the last block, whatever it carried before.
    """

    out: Tensor
    into: Tensor
    shares: Mapping[str, Tensor]
    """sqrt(flow / bounded) for parameters that enter at their own places."""

    @classmethod
    def of(cls, measured: Measure, parameters: Mapping[str, Tensor], rho: float) -> Sides | None:
        if rho == 0 or measured.log_gamma_sq == -math.inf:
            return None
        flow = path_flow(measured, parameters)
        shares = {
            name: _share(there, measured)
            for name, there in flow_at_places(measured, parameters).items()
        }
        return cls(*flow_sides(flow, _least(measured, flow.device), rho / 4), shares)

    def for_all(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Per-node factors for incoming and for outgoing edges."""
        return self.out.to(device), self.into.to(device)

    def at_place(self, name: str, device: torch.device) -> Tensor | None:
        """The factors for incoming edges of a parameter that enters at its own place, else None."""
        return (self.shares[name] * self.into).to(device) if name in self.shares else None


def _share(flow: Tensor, measured: Measure) -> Tensor:
    """sqrt(flow / bounded); 1 where flow is 0."""
    return torch.where(flow > 0, (flow / _bounded(flow, measured)).sqrt(), 1.0)
