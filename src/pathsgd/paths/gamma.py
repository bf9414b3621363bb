"""gamma^2 and its relatives of a model, from one pass of the squared network (network/squared.py).

Where gradients are enabled they carry one, as any function of torch does, so that they can be a
term of a loss:

    d gamma^2 / dp = 2 p kappa1        d log gamma^2 / dp = 2 p kappa1 / gamma^2, always finite
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from pathsgd.arithmetic import scaled
from pathsgd.arithmetic.scaled import Scaled
from pathsgd.distributed.sharded import whole_parameters
from pathsgd.network.record.record import Output, record
from pathsgd.network.squared import Evaluation


def _total(model: nn.Module, inputs: tuple[Any, ...], order: float, output: Output) -> Scaled:
    """The sum over paths of prod |w|^order."""
    derivative: Literal["p"] | None = "p" if torch.is_grad_enabled() else None
    recording = record(model, inputs, output)
    return Evaluation(recording, whole_parameters(model), order, derivative=derivative).total


def log_gamma_sq(model: nn.Module, *inputs: Any, output: Output = None) -> Tensor:
    """log gamma^2 as a 0-d float64 tensor; finite for every length, -inf if there is no path.

    The one to use as a term of a loss: neither it nor its gradient 2 p kappa1 / gamma^2 overflows.
    """
    total = _total(model, inputs, 2.0, output)
    return total.mantissa.log() + total.log_scale


def gamma_sq(model: nn.Module, *inputs: Any, output: Output = None) -> Tensor:
    """gamma^2, the sum over input-to-output paths of the product of squared weights, 0-d float64.

    inputs: example inputs of the model; only shapes and dtypes matter. gamma^2 is the network's,
        measured on one example: it does not depend on the batch size.
    output: which of the model's results to measure, an index, a key or a function; None takes the
        first tensor.

    Where gamma^2 itself exceeds float64 the result is inf; `log_gamma_sq` never is.

    >>> import torch
    >>> from torch.nn import Linear, ReLU, Sequential
    >>> net = Sequential(Linear(2, 3, bias=False), ReLU(), Linear(3, 1, bias=False))
    >>> expected = (net[2].weight.double() ** 2 @ net[0].weight.double() ** 2).sum()
    >>> bool(torch.isclose(gamma_sq(net, torch.ones(1, 2)), expected))
    True
    """
    total = _total(model, inputs, 2.0, output)
    return scaled.to_float(total.mantissa, total.log_scale)


def path_norm(model: nn.Module, *inputs: Any, order: float = 2, output: Output = None) -> Tensor:
    """(sum over paths of prod |w|^order)^(1/order), a 0-d float64 tensor.

    Order 1 bounds the sum of the absolute outputs over inputs in [-1, 1]; order 2 is gamma itself.
    Its gradient takes 0 for the derivative of |w| at w = 0; below order 1 there is none at a weight
    that is exactly zero.
    """
    if not 0 < order < float("inf"):
        raise ValueError(f"order must be positive and finite, got {order}")
    total = _total(model, inputs, float(order), output)
    return scaled.to_float(total.mantissa, total.log_scale, float(order))
