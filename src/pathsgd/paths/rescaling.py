"""Node-wise rescalings of a model in place: given, random, or balanced.

p <- p * alpha[target] / alpha[source]      alpha > 0 for each free node (network/nodes.py)
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pathsgd.distributed.sharded import refuse_sharded
from pathsgd.network.node_spaces import NodeSpaces
from pathsgd.network.nodes import spaces_of
from pathsgd.network.record.model import check_model
from pathsgd.network.record.record import Output, record
from pathsgd.network.rules.base import FIXED
from pathsgd.paths import carry


def node_spaces(model: nn.Module, *inputs: Any, output: Output = None) -> NodeSpaces:
    """The feasible node-wise rescalings: the free nodes, and how they act on each parameter."""
    return spaces_of(record(model, inputs, output), dict(model.named_parameters()))


def rescale_nodes(
    model: nn.Module,
    *inputs: Any,
    alpha: Any,
    output: Output = None,
    optimizer: Optimizer | None = None,
) -> nn.Module:
    """Rescale the model's units in place: p <- p * alpha[out] / alpha[into]. Returns the model.

    alpha: one positive number per free node (see `node_spaces`), or a single number for all of
        them.
    optimizer: the model's optimiser, whose state is carried along (see `balance`).
    """
    parameters, spaces = _free_nodes(model, inputs, output, optimizer)
    apply(parameters, spaces, _checked(alpha, spaces.count), optimizer)
    return model


def random_rescaling(
    model: nn.Module,
    *inputs: Any,
    low: float = 1e-2,
    high: float = 1e2,
    powers_of_two: bool = False,
    generator: torch.Generator | None = None,
    output: Output = None,
    optimizer: Optimizer | None = None,
) -> nn.Module:
    """Rescale every free node in place by a random alpha, log-uniform from low to high.

    powers_of_two: round each alpha to the nearest power of two. Then nothing is rounded in the
        weights: the function is the same in every bit, and so are the steps of PathAdam and PathSGD
        where their metric is measured as exactly.
    optimizer: the model's optimiser, whose state is carried along (see `balance`).
    """
    parameters, spaces = _free_nodes(model, inputs, output, optimizer)
    alpha = random_alpha(spaces.count, low, high, generator)
    apply(parameters, spaces, alpha.log2().round().exp2() if powers_of_two else alpha, optimizer)
    return model


def random_alpha(count: int, low: float, high: float, generator: torch.Generator | None) -> Tensor:
    """`count` numbers, log-uniform between low and high."""
    if not 0 < low <= high < math.inf:
        raise ValueError(f"need 0 < low <= high, both finite, got low={low}, high={high}")
    draw = torch.rand(count, generator=generator, dtype=torch.float64)
    return torch.exp(math.log(low) + draw * math.log(high / low))


def apply(
    parameters: Mapping[str, Tensor],
    spaces: NodeSpaces,
    alpha: Tensor,
    optimizer: Optimizer | None = None,
) -> None:
    """p <- p * alpha[target] / alpha[source], with the optimiser's state; alpha: (count,)."""
    factors = torch.cat([alpha.new_ones(1), alpha])
    with torch.no_grad():
        for name, p in parameters.items():
            edges = spaces.edges[name]
            if edges.free:
                p.mul_((factors[edges.target] / factors[edges.source]).to(p))
        if optimizer is not None:
            carry.carry(optimizer, parameters, spaces, factors)


def balance(
    model: nn.Module,
    *inputs: Any,
    output: Output = None,
    optimizer: Optimizer | None = None,
    tolerance: float = 1e-10,
    max_iterations: int = 10_000,
) -> nn.Module:
    """Rescale the model in place to the least sum of squared weights. Returns the model.

        minimise over alpha  sum_e (w_e alpha[out] / alpha[into])^2

    optimizer: the model's optimiser, if it is to go on: its state is carried along, so that it
        holds what it would, had the net been balanced from the start. The steps of PathAdam and
        PathSGD that follow then move the function as if nothing had happened; those of torch's
        optimisers do not, because they depend on the scaling.

    At the minimum every free node has equal squared weight going in and coming out. The problem is
    convex in log alpha; it is solved node by node (Osborne 1960 for one matrix; Stock et al. 2019
    for networks), all nodes at once with half steps, until no node's ratio is off by more than
    `tolerance`. Nodes with nothing coming in or going out have no optimum and are left as they are.
    """
    parameters, spaces = _free_nodes(model, inputs, output, optimizer)
    log_alpha = torch.zeros(spaces.count + 1, dtype=torch.float64)
    into, out = _squared_sums(parameters, spaces, log_alpha)
    movable = (into > 0) & (out > 0)
    movable[FIXED] = False
    for _ in range(max_iterations):
        step = torch.where(movable, 0.25 * (out / into).log(), 0.0)
        if float(step.abs().max()) < tolerance:
            break
        log_alpha += 0.5 * step
        into, out = _squared_sums(parameters, spaces, log_alpha)
    else:
        warnings.warn(
            f"balance stopped after {max_iterations} iterations with ratios off by up to "
            f"{float(step.abs().max()):.1e}; the function is unchanged, the balance approximate",
            stacklevel=2,
        )
    apply(parameters, spaces, log_alpha[1:].exp(), optimizer)
    return model


def _free_nodes(
    model: nn.Module, inputs: tuple[Any, ...], output: Output, optimizer: Optimizer | None
) -> tuple[dict[str, Tensor], NodeSpaces]:
    check_model(model)
    refuse_sharded(model, "rescaling (rescale_nodes, random_rescaling, balance)")
    parameters: dict[str, Tensor] = dict(model.named_parameters())
    if optimizer is not None:
        carry.check(optimizer, parameters)
    spaces = spaces_of(record(model, inputs, output), parameters)
    if spaces.count == 0:
        raise ValueError(
            "the model has no free node: every unit is an input, an output or tied to one"
        )
    return parameters, spaces


def _checked(alpha: Any, count: int) -> Tensor:
    values = torch.as_tensor(alpha, dtype=torch.float64)
    values = values.expand(count) if values.dim() == 0 else values
    if values.shape != (count,):
        raise ValueError(
            f"alpha must be one number or {count} numbers (one per free node), "
            f"got shape {tuple(values.shape)}"
        )
    if not bool((values > 0).all() and values.isfinite().all()):
        raise ValueError(
            "alpha must be positive and finite: "
            "a unit scaled by zero or a negative number is another function"
        )
    return values


def _squared_sums(
    parameters: Mapping[str, Tensor], spaces: NodeSpaces, log_alpha: Tensor
) -> tuple[Tensor, Tensor]:
    """Squared weight entering and leaving each node, without edges from a node to itself."""
    into, out = torch.zeros_like(log_alpha), torch.zeros_like(log_alpha)
    for name, p in parameters.items():
        edges = spaces.edges[name]
        if not edges.free:
            continue
        target, source = (side.expand(p.shape) for side in (edges.target, edges.source))
        factor = torch.exp(2 * (log_alpha[edges.target] - log_alpha[edges.source]))
        weight = torch.where(target != source, p.detach().to(factor).square() * factor, 0.0)
        into.scatter_add_(0, target.reshape(-1), weight.reshape(-1))
        out.scatter_add_(0, source.reshape(-1), weight.reshape(-1))
    return into, out
