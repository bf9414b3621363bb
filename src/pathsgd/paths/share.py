"""The share of all paths that a weight carries: a score for pruning that rescaling does not change.

    share_i = q_i kappa1_i / gamma^2 = 1/2 p_i d log gamma^2 / dp_i

It is the weight of all paths through the entry, each counted as often as it uses the entry, as a share of gamma^2.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from pathsgd.distributed.sharded import whole_parameters
from pathsgd.network.record.record import Output, record
from pathsgd.network.rolled import rolled
from pathsgd.paths.kappa import Kappa


def path_share(model: nn.Module, *inputs: Any, output: Output = None) -> dict[str, Tensor]:
    """Each weight's share of gamma^2, by parameter name, as float64 tensors of the parameters' shapes.

    inputs: example inputs of the model; only shapes and dtypes matter.
    output: which of the model's results to measure, an index, a key or a function; None takes the first tensor.

    The shares of a layer that every path crosses once add up to one, with the bias that starts paths there. They are
    importance scores for `torch.nn.utils.prune`:

    >>> import torch
    >>> from torch.nn.utils import prune
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    >>> share = path_share(net, torch.ones(1, 4))
    >>> weights = {(net[0], "weight"): share["0.weight"], (net[2], "weight"): share["2.weight"]}
    >>> prune.global_unstructured(list(weights), prune.L1Unstructured, importance_scores=weights, amount=0.5)
    >>> int(sum((module.weight == 0).sum() for module, _ in weights))
    20
    """
    parameters = whole_parameters(model)
    measured = Kappa(rolled(record(model, inputs, output)), parameters)
    total = measured.total.mantissa.detach()
    if total == 0:
        raise ValueError(
            "gamma^2 is zero: no path reaches the output, so no weight has a share of it"
        )
    result = {
        name: torch.zeros(p.shape, dtype=torch.float64, device=p.device)
        for name, p in parameters.items()
    }
    for name, q in measured.evaluation.weights.items():
        result[name] = (
            q.mantissa.detach() * measured.first()[name] / total
        )  # the scales of q and of kappa cancel
    return result
