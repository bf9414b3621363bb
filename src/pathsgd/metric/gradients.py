"""Path-normalised gradients in place: grad <- grad / K, for any optimiser."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from pathsgd.distributed.sharded import refuse_sharded
from pathsgd.metric.bounds import (
    Clip,
    DualNorm,
    Length,
    Scale,
    bound_of,
    clip_factor,
    length,
    sgd_constant,
)
from pathsgd.metric.choice import MetricChoice, check_scale, without_memory
from pathsgd.metric.geometry import Geometry, refuse_unfit
from pathsgd.metric.whitening import inverse_metric
from pathsgd.network.record.model import check_model
from pathsgd.network.record.record import Output
from pathsgd.paths.kappa import Terms


def path_normalize_grad_(
    model: nn.Module,
    *inputs: Any,
    terms: Terms = "first",
    metric: MetricChoice = "paper",
    scale: Scale | float = "kappa",
    clip: Clip = None,
    output: Output = None,
) -> Tensor:
    """Replace every `.grad` by grad / K, in place; returns the dual norm before clipping.

    Call it between `backward()` and the step of any optimiser, like `clip_grad_norm_`. It records
    the model at every call; `pathsgd.optim.wrap` does the same before each step of an optimiser,
    and records once per shape.

    model: the network whose gradients are changed.
    inputs: example inputs; only shapes and dtypes matter.
    terms: "first" kappa1, "both" kappa1 + kappa2.
    metric: "paper", grad / kappa; "relative" or a `pathsgd.Metric`, grad / K.
    scale: "kappa" leaves grad / kappa as it is; "sgd" makes it as long as the gradient, with a new
        constant at each call. To keep the first constant, as PathSGD and `wrap` do, pass it.
    clip: under the paper's metric a bound on the length of the result, which rescaling changes;
        otherwise on the dual norm sqrt(<grad, result>), which is invariant.
        `pathsgd.optim.DualNorm(limit)` bounds the dual norm under every metric. A gradient whose
        length is not finite becomes zero.
    output: which of the model's results to measure; None takes the first tensor.

    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    >>> model(torch.ones(3, 4)).pow(2).mean().backward()
    >>> dual_norm = path_normalize_grad_(model, torch.ones(3, 4))
    """
    check_model(model)
    refuse_sharded(model, "path_normalize_grad_", "use PathSGD or PathAdam")
    chosen_metric = without_memory(metric)
    bound = bound_of(clip, chosen_metric)
    if isinstance(scale, str):
        check_scale(scale, chosen_metric)
    parameters = {name: p for name, p in model.named_parameters() if p.grad is not None}
    if not parameters:
        return torch.zeros((), dtype=torch.float64)
    with torch.enable_grad():  # kappa is a derivative
        measured = Geometry(model, output).measure(inputs, terms)
    inverses = inverse_metric(measured, dict(model.named_parameters()), chosen_metric)
    constant = {"kappa": 1.0, "sgd": None}[scale] if isinstance(scale, str) else float(scale)
    return scale_gradients_(parameters, inverses, bound, constant)[0]


@torch.no_grad()
def scale_gradients_(
    parameters: Mapping[str, Tensor],
    inverses: Mapping[str, Tensor],
    bound: DualNorm | Length | None,
    constant: float | None = 1.0,
) -> tuple[Tensor, float | None]:
    """grad <- constant * grad * inverse metric, clipped; returns the unclipped norm and constant.

    constant: None to measure the one that makes the result as long as the gradient. No grad may be
        missing.
    """
    grads = {name: p.grad for name, p in parameters.items() if p.grad is not None}
    refuse_unfit(list(grads), [parameters[name] for name in grads], list(grads.values()))
    # In float64: 1/kappa may leave the gradient's range where the product does not.
    scaled = {name: grad.double() * inverses[name] for name, grad in grads.items()}
    if constant is None:
        constant = sgd_constant(list(grads.values()), list(scaled.values()))
    factor = 1.0 if constant is None else constant
    norm = (
        factor**0.5
        * torch.stack([(grads[name] * scaled[name]).sum() for name in grads]).sum().sqrt()
    )
    if isinstance(bound, DualNorm):
        factor *= clip_factor(float(norm), bound.limit)
    elif isinstance(bound, Length):
        factor *= clip_factor(factor * length(list(scaled.values())), bound.limit)
    for name, grad in grads.items():
        grad.copy_(scaled[name].mul_(factor)) if factor else grad.zero_()
    return norm, constant
