"""An optimiser's state after a rescaling: what it would hold for the rescaled model.

    p -> c p        grad -> grad / c        1/sqrt(K) -> c / sqrt(K)        grad / sqrt(K) -> itself

So each tensor of a state is multiplied by a power of c. Torch's optimisers keep powers of the
gradient; path optimisers carry their states themselves (`PathOptimizer.carry`). What
`bound_growth_` keeps in another optimiser's state is in balanced coordinates, but for
`growth_scale`, the scale of the units.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.optim import SGD, Adagrad, Adam, Adamax, AdamW, NAdam, Optimizer, RAdam, RMSprop

from pathsgd.network.node_spaces import NodeSpaces

_MOMENTS = {"exp_avg": 1, "exp_avg_sq": 2, "max_exp_avg_sq": 2}
POWERS_OF_GRADIENT: dict[type[Optimizer], dict[str, int]] = {
    SGD: {"momentum_buffer": 1},
    RMSprop: {
        "square_avg": 2,
        "grad_avg": 1,
        "momentum_buffer": 0,
    },  # the momentum of gradients that were divided
    Adagrad: {"sum": 2},
    Adamax: {"exp_avg": 1, "exp_inf": 1},
    **dict.fromkeys((Adam, AdamW, NAdam, RAdam), _MOMENTS),
}
"""What torch's optimisers keep: each tensor's power of the gradient."""


def powers_of(optimizer: Optimizer) -> dict[str, int]:
    """The power of c for each tensor of the state; an unknown optimiser is refused."""
    known = POWERS_OF_GRADIENT.get(type(optimizer))
    if known is None:
        names = ", ".join(kind.__name__ for kind in POWERS_OF_GRADIENT)
        raise ValueError(
            f"how the state of {type(optimizer).__name__} scales with the units is not known; "
            f"known are PathAdam, "
            f"are PathAdam, "
            f"PathSGD, {names}. Rescale before the first step, or begin with a new optimiser"
        )
    # A wrapped optimiser sees grad / kappa, which scales as the parameter does.
    hooks = getattr(optimizer, "_optimizer_step_pre_hooks", {}).values()
    power = next((hook.gradient_power for hook in hooks if hasattr(hook, "gradient_power")), -1)
    return {name: power * of_gradient for name, of_gradient in known.items()}


def check(optimizer: Optimizer, parameters: Mapping[str, Tensor]) -> None:
    """Refuse an optimiser whose state cannot be carried along, before anything changes."""
    if not isinstance(optimizer, Optimizer):
        raise TypeError(
            f"optimizer must be a torch.optim.Optimizer, not {type(optimizer).__name__}"
        )
    if hasattr(optimizer, "carry"):
        return
    powers = powers_of(optimizer)
    for name, p in parameters.items():
        for key, value in optimizer.state.get(p, {}).items():
            # What growth bounds keep is in coordinates that do not change.
            is_known = key in powers or key.startswith("growth_")
            if not is_known and isinstance(value, Tensor) and value.shape == p.shape and p.dim():
                raise ValueError(
                    f"how {key!r} in the optimiser's state of '{name}' scales is not known"
                )


def carry(
    optimizer: Optimizer, parameters: Mapping[str, Tensor], spaces: NodeSpaces, factors: Tensor
) -> None:
    """Let the state follow a rescaling of the parameters.

    factors: alpha of every node, 1 for the fixed one.
    """
    carried = getattr(optimizer, "carry", None)
    powers = {} if carried else powers_of(optimizer)
    for name, p in parameters.items():
        edges = spaces.edges[name]
        if edges.free and p in optimizer.state:
            c = (factors[edges.target] / factors[edges.source]).expand(p.shape)
            alpha = factors[edges.target].reshape(-1)
            if carried:
                carried(p, c, alpha)
            else:
                _carry_one(optimizer.state[p], c, alpha, powers)


def _carry_one(state: dict[str, Any], c: Tensor, alpha: Tensor, powers: Mapping[str, int]) -> None:
    for key, power in powers.items():
        if isinstance(state.get(key), Tensor):
            state[key] = state[key] * c.pow(power).to(state[key])
    if "growth_scale" in state:
        state["growth_scale"] = state["growth_scale"] * alpha.to(state["growth_scale"])
