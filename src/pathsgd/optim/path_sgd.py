"""Path-SGD, with momentum in whitened coordinates.

u = grad / sqrt(K),  m <- momentum * m + u,  p <- p - lr * m / sqrt(K)        (K: metric/choice.py)
p <- p - lr * grad / kappa                                                    metric="paper"
p <- p - lr * c * grad / kappa,  c = |grad| / |grad / kappa| at the first step      and scale="sgd"
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from torch import Tensor, nn

from pathsgd.kernels.update import GRADIENT, MOMENTUM, NESTEROV, UpdateRule
from pathsgd.metric.bounds import DualNorm, Scale, check_scale, sgd_constant
from pathsgd.metric.choice import MetricChoice, chosen
from pathsgd.network.record.record import Output
from pathsgd.optim.base import Bound, PathOptimizer, rate_of
from pathsgd.optim.clip import directions
from pathsgd.optim.moves import Move
from pathsgd.optim.parts import Part
from pathsgd.optim.shards import adder
from pathsgd.paths.kappa import Terms


class PathSGD(PathOptimizer):
    """Stochastic gradient descent in a model's path geometry; invariant under node-wise rescaling.

    model: the network itself; the metric needs its structure.
    lr: step size eta.
    momentum: as in torch.optim.SGD, on whitened gradients.
    nesterov: Nesterov's momentum.
    weight_decay: decoupled, p <- (1 - lr * weight_decay) p: added to the gradient it would break the invariance.
    metric: "absolute", "relative" or a `pathsgd.Metric`; "paper" is the paper's rule, p <- p - lr * grad / kappa, and
        nothing else.
    terms: "first" uses kappa1, "both" kappa1 + kappa2.
    scale: under the paper's metric, "kappa" is the rule as printed; "sgd" multiplies it by one constant, measured at
        the first step and kept in the state dict, that makes this step as long as SGD's: SGD's rates then fit.
    clip: a number bounds the dual norm of the gradient; under the paper's metric it bounds the length of the scaled
        direction instead, as `clip_grad_norm_` on path-normalised gradients would, which rescaling changes.
        `DualNorm(limit)` bounds the dual norm under every metric. None for none. "auto": 1, none under the paper's.
    growth: bound on the growth rate of every recurrent matrix, uses * log(rate), kept after each step
        (optim/growth.py); steps, too, keep to what the rates leave room for (optim/step_bound.py). None for none.
        "auto": 3, none under the paper's metric.
    refresh_every: steps between two measurements of the metric.
    capturable: a step on a GPU between two measurements can be captured in a graph and replayed (docs/scale.md).
    maximize: step up the gradient.
    params: parameters, named parameters or groups of them; None for all of the model's.
    example_inputs: inputs of the shapes to measure for; None: those of the model's last forward pass.
    output: which of the model's results to measure, an index, a key or a function; None takes the first tensor.

    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    >>> optimizer = PathSGD(model, lr=0.1)
    >>> model(torch.ones(3, 4)).pow(2).mean().backward()
    >>> optimizer.step()
    """

    kept: ClassVar[tuple[str, ...]] = (*PathOptimizer.kept, "scale")

    def __init__(
        self,
        model: nn.Module,
        lr: float | Tensor = 1e-2,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        metric: MetricChoice = "absolute",
        *,
        scale: Scale = "kappa",
        terms: Terms = "first",
        clip: Bound | DualNorm = "auto",
        growth: Bound = "auto",
        refresh_every: int = 1,
        capturable: bool = False,
        maximize: bool = False,
        params: Any = None,
        example_inputs: Any = None,
        output: Output = None,
    ) -> None:
        check_scale(scale, chosen(metric))
        self.scale = scale
        defaults = {
            "lr": lr, "momentum": momentum, "nesterov": nesterov, "weight_decay": weight_decay, "maximize": maximize,
            "constant": None,
        }  # fmt: skip
        super().__init__(
            model, params, defaults, metric=metric, terms=terms, clip=clip, growth=growth, refresh_every=refresh_every,
            capturable=capturable, example_inputs=example_inputs, output=output,
        )  # fmt: skip

    def _check(self, group: dict[str, Any]) -> None:
        super()._check(group)
        if not 0 <= group["momentum"] < 1:
            raise ValueError(f"momentum must be in [0, 1), got {group['momentum']}")
        if group["nesterov"] and group["momentum"] == 0:
            raise ValueError("nesterov needs momentum")

    def _constant(self, parts: Sequence[Part]) -> float:
        if self.scale == "kappa":
            return 1.0
        known = self.param_groups[0].get("constant")
        if known is not None:
            return float(known)
        gradients = [gradient for part in parts for gradient in part.gradients()]
        constant = sgd_constant(gradients, directions(parts), adder(parts))
        if constant is None:  # nothing moves, or nothing is finite: the next step must tell
            return 1.0
        for group in self.param_groups:
            group["constant"] = constant
        return constant

    def _moment_names(self, group: dict[str, Any]) -> tuple[str, ...]:
        return ("momentum_buffer",) if group["momentum"] else ()

    def _motion(self, part: Part, constant: float) -> Move:
        group = part.group
        lr, rate = rate_of(group, capturable=self.capturable)
        if not group["momentum"]:
            return Move(part, UpdateRule(GRADIENT), -lr * constant, rate=rate)
        rule = UpdateRule(NESTEROV if group["nesterov"] else MOMENTUM, momentum=group["momentum"])
        return Move(part, rule, -lr * constant, self._moment_names(group), rate=rate)
