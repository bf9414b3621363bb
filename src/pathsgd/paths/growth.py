"""The growth rates of a model's recurrent matrices (see arithmetic/growth.py)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from pathsgd.arithmetic import growth
from pathsgd.distributed.sharded import whole_parameters
from pathsgd.network.record.record import Output, record
from pathsgd.network.recurrences import Recurrence, recurrences
from pathsgd.paths.kappa import Kappa


class GrowthRate(float):
    """A growth rate: as a number, the growth that was found; with a bound that nothing exceeds.

    lower: the largest growth found from many starts; the rate itself, unless no start led to its
        direction.
    upper: the Perron root of max(W, 0): no state grows faster, whichever units are active.
    uses: how often paths apply the matrix; uses * log(rate) is what a signal can gain on its way.
    """

    lower: float
    upper: float
    uses: int

    def __new__(cls, lower: float, upper: float, uses: int) -> GrowthRate:
        rate = super().__new__(cls, lower)
        rate.lower, rate.upper, rate.uses = lower, upper, uses
        return rate

    def __repr__(self) -> str:
        return f"GrowthRate({self.lower:.6g}, upper={self.upper:.6g}, uses={self.uses})"

    def __reduce__(self) -> tuple[Any, ...]:
        return GrowthRate, (self.lower, self.upper, self.uses)


@torch.no_grad()
def growth_rate(model: nn.Module, *inputs: Any, output: Output = None) -> dict[str, GrowthRate]:
    """The growth rate of every matrix that the model applies to its own results, by parameter name.

    inputs: example inputs of the model; only shapes and dtypes matter.
    output: which of the model's results to measure, an index, a key or a function; None takes the
        first tensor.

    A state that nothing enters any more grows or fades by this factor in each application, in the
    long run and from
    the worst start: h -> relu(W h) for an RNN layer, a loop over a cell or a stack of tied layers,
    the whole map h -> (1 - a) h + a relu(W h) for a leaky RNN. Rescaling units does not change it.
    Matrices in loops of another kind (network/recurrences.py) are left out.

    >>> import torch
    >>> rnn = torch.nn.RNN(2, 3, nonlinearity="relu")
    >>> with torch.no_grad():
    ...     _ = rnn.weight_hh_l0.copy_(0.9 * torch.eye(3))
    >>> rates = growth_rate(rnn, torch.ones(7, 1, 2))
    >>> print(round(rates["weight_hh_l0"], 4), round(rates["weight_hh_l0"].upper, 4))
    0.9 0.9
    """
    recording = record(model, inputs, output)
    found = recurrences(recording)
    if not found:
        return {}
    parameters: dict[str, Tensor] = whole_parameters(model)
    with torch.enable_grad():  # kappa is a derivative
        kappa1 = Kappa(recording, parameters).first()
    rates = {}
    for recurrence in found:
        weight = parameters[recurrence.name].detach().double()
        f = map_of(recurrence, weight, whitening_of(kappa1, recurrence.name, weight))
        upper = float(growth.upper_bound(f))
        # A direction that grows by exp(c / T) in each of T uses stands out after some T / c
        # iterations, not before.
        iterations = max(240, min(2 * recurrence.uses, 4000))
        lower = math.nan
        if math.isfinite(upper):
            lower = float(growth.strongest(f, iterations=iterations)[0])
        rates[recurrence.name] = GrowthRate(min(lower, upper), upper, recurrence.uses)
    return rates


def whitening_of(kappa1: Mapping[str, Tensor], name: str, weight: Tensor) -> Tensor:
    """1/sqrt(kappa1) of a matrix, 0 where no path uses an entry."""
    kappa = kappa1[name].detach().to(weight).expand(weight.shape)
    return torch.where(kappa > 0, kappa.rsqrt(), 0.0)


def map_of(
    recurrence: Recurrence,
    weight: Tensor,
    whitening: Tensor | None = None,
    scale: Tensor | None = None,
) -> growth.Map:
    """The map of a recurrence with this weight (H, H); scale: from the whitening if not given."""
    if recurrence.transposed:
        weight, whitening = weight.t(), None if whitening is None else whitening.t()
    if scale is None:
        assert whitening is not None
        scale = growth.scale_of(whitening.to(weight), weight)
    numbers = (recurrence.keep, recurrence.gain)
    keep, gain = (c.to(weight) if isinstance(c, Tensor) else c for c in numbers)
    return growth.Map(weight, scale, keep, gain, recurrence.inside)
