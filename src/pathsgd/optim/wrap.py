"""Path-normalised gradients for any torch optimiser: grad / kappa or grad / K before each step."""

from __future__ import annotations

import functools
import math
from typing import Any, ClassVar

import torch
from torch import nn
from torch.optim import LBFGS, Optimizer

from pathsgd.distributed.sharded import refuse_sharded
from pathsgd.metric.bounds import Clip, DualNorm, Length, Scale, bound_of
from pathsgd.metric.choice import (
    Metric,
    MetricChoice,
    PaperMetric,
    check_scale,
    without_memory,
)
from pathsgd.metric.geometry import Geometry
from pathsgd.metric.gradients import scale_gradients_
from pathsgd.metric.whitening import inverse_metric
from pathsgd.network.record.model import original
from pathsgd.network.record.record import Output
from pathsgd.optim.last_inputs import LastInputs
from pathsgd.paths.kappa import Terms

CONSTANT = "path_constant"
"""Where the constant of `scale="sgd"` is kept."""


class Wrapped:
    """What `wrap` returns. `remove()` gives the optimiser its plain gradients back."""

    gradient_power: ClassVar[int] = 1
    """A normalised gradient scales as its parameter does (paths/carry.py)."""

    def __init__(
        self, optimizer: Optimizer, model: nn.Module, example_inputs: Any, output: Output,
        terms: Terms, metric: Metric | PaperMetric, scale: Scale, clip: DualNorm | Length | None,
    ) -> None:  # fmt: skip
        self.terms, self.metric, self.scale, self.clip = terms, metric, scale, clip
        self.dual_norm = math.nan
        """Length of the last gradient in the dual metric, before clipping."""
        self._geometry = Geometry(original(model), output)
        self._last = LastInputs(original(model), example_inputs)
        self._last.belong_to(self)
        self._last.watch(model)
        self._handle = optimizer.register_step_pre_hook(self)

    def __call__(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        closure = kwargs.get("closure") if len(args) < 2 else args[1]
        if closure is None:
            self.normalize_(optimizer)
            return None

        @functools.wraps(closure)
        def normalizing() -> (
            Any
        ):  # the gradients of a step with a closure are those after the closure
            loss = closure()
            self.normalize_(optimizer)
            return loss

        if len(args) < 2:
            return args, {**kwargs, "closure": normalizing}
        return (args[0], normalizing, *args[2:]), kwargs

    def normalize_(self, optimizer: Optimizer) -> None:
        """Normalise the gradients of the optimiser's parameters in place."""
        known = self._geometry.parameters()
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        parameters = {name: p for name, p in known.items() if id(p) in held and p.grad is not None}
        if not parameters:
            return
        with torch.enable_grad():  # kappa is a derivative
            call, dice = self._last.get_agreed(self._geometry)
            measured = self._geometry.measure(call, self.terms, parameters=known, dice=dice)
        self._last.learn_from(self._geometry.structures)
        inverses = inverse_metric(measured, known, self.metric)
        # The constant lies in the optimiser's first group, and so in its state dict.
        group = optimizer.param_groups[0]
        constant = 1.0 if self.scale == "kappa" else group.get(CONSTANT)
        norm, constant = scale_gradients_(parameters, inverses, self.clip, constant)
        self.dual_norm = float(norm)
        if self.scale == "sgd" and constant is not None:
            group[CONSTANT] = constant

    def remove(self) -> None:
        """Let the optimiser see plain gradients again."""
        self._handle.remove()
        self._last.release()


def wrap(
    optimizer: Optimizer,
    model: nn.Module,
    example_inputs: Any = None,
    *,
    terms: Terms = "first",
    metric: MetricChoice = "paper",
    scale: Scale = "kappa",
    clip: Clip = None,
    output: Output = None,
) -> Wrapped:
    """Make any torch optimiser use path-normalised gradients: grad / kappa, or grad / K.

    It works in place, like `clip_grad_norm_`: after the step `.grad` holds the normalised gradient,
    so every step needs new gradients (zero_grad, backward, step). Plain SGD is then invariant under
    rescaling; an optimiser that keeps moments in these coordinates (momentum, Adam) is not: use
    PathSGD or PathAdam.

    optimizer: any optimiser of the model's parameters.
    model: the network.
    example_inputs: inputs of the shapes to measure for; None: those of the last forward pass.
    terms: "first" kappa1, "both" kappa1 + kappa2.
    metric: "paper", grad / kappa; "relative" or a `pathsgd.Metric`, grad / K.
    scale: "kappa" leaves grad / kappa as it is; "sgd" multiplies it by one constant, measured at
        the first step and kept in the optimiser's state dict, that makes the first direction as
        long as the gradient.
    clip: under the paper's metric a bound on the length of the direction, which rescaling changes;
        otherwise on the dual norm, which is invariant. `pathsgd.optim.DualNorm(limit)` bounds the
        dual norm under every metric.
    output: which of the model's results to measure; None takes the first tensor.

    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    >>> optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    >>> handle = wrap(optimizer, model)
    >>> model(torch.ones(3, 4)).pow(2).mean().backward()
    >>> optimizer.step()
    """
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"the first argument is a torch optimiser, not {type(optimizer).__name__}")
    if isinstance(optimizer, LBFGS):
        raise TypeError(
            "LBFGS measures curvature, and searches along lines, by the gradients of the loss "
            "itself, which normalised ones are not; wrap an optimiser that only steps along its "
            "gradients, or use PathSGD or PathAdam"
        )
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"the second argument is the model (a torch.nn.Module), not {type(model).__name__}"
        )
    refuse_sharded(model, "wrap", "use PathSGD or PathAdam")
    chosen_metric = without_memory(metric)
    check_scale(scale, chosen_metric)
    return Wrapped(
        optimizer,
        model,
        example_inputs,
        output,
        terms,
        chosen_metric,
        scale,
        bound_of(clip, chosen_metric),
    )
