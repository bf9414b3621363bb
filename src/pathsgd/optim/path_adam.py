"""Adam in path geometry.

    u = grad / sqrt(K);  m, v: Adam's moments of u;  p <- p - lr * m^ / (sqrt(v^) + eps) / sqrt(K)
    m, v: Adam's moments of grad / kappa;            p <- p - lr * m^ / (sqrt(v^) + eps)            metric="paper"

The moments of u do not change when units are rescaled, so neither does the trajectory of the function. The paper's
form loses that: Adam divides by the size of its input, and with it kappa's scale.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

from torch import Tensor, nn

from pathsgd.kernels.update import ADAM, UpdateRule
from pathsgd.metric.bounds import DualNorm
from pathsgd.metric.choice import MetricChoice, PaperMetric, chosen
from pathsgd.network.record.record import Output
from pathsgd.optim.base import Bound, PathOptimizer, rate_of
from pathsgd.optim.moves import Move
from pathsgd.optim.parts import Part
from pathsgd.paths.kappa import Terms

DEFAULTS, PAPER_DEFAULTS = (3e-3, (0.9, 0.99)), (1e-3, (0.9, 0.999))
"""Learning rate and betas, in path geometry and under the paper's metric."""


class PathAdam(PathOptimizer):
    """Adam (Kingma & Ba 2015) on whitened gradients; invariant under node-wise rescaling unless metric="paper".

    model: the network itself; the metric needs its structure.
    lr: Adam's alpha; None: 3e-3 (docs/compare.md has the study), under the paper's metric Adam's own 1e-3.
    betas: Adam's beta1 and beta2; None: (0.9, 0.99), under the paper's metric (0.9, 0.999).
    eps: Adam's epsilon; under the paper's metric in units of gamma^2 at the first step.
    weight_decay: decoupled, p <- (1 - lr * weight_decay) p.
    metric: "absolute", "relative" or a `pathsgd.Metric`; "paper" is Adam fed with grad / kappa, and nothing else.
    terms: "first" uses kappa1, "both" kappa1 + kappa2.
    clip: bound on the dual norm of the gradient, a number or `DualNorm(limit)`, None for none. "auto": 1, none under
        the paper's metric, which takes only a `DualNorm`, in units of gamma at the first step.
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
    >>> optimizer = PathAdam(model, lr=1e-3)
    >>> model(torch.ones(3, 4)).pow(2).mean().backward()
    >>> optimizer.step()
    """

    alike: ClassVar[tuple[str, ...]] = ("step",)
    # kappa itself may leave the range of any dtype. In units of gamma^2 at the first step it does not, and Adam divides
    # a constant out again.
    counts_from_start: ClassVar[bool] = True

    def __init__(
        self,
        model: nn.Module,
        lr: float | Tensor | None = None,
        betas: tuple[float, float] | None = None,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        metric: MetricChoice = "absolute",
        *,
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
        if isinstance(chosen(metric), PaperMetric) and isinstance(clip, (int, float)):
            raise ValueError(
                f"clip={clip}: the length of grad / kappa has no unit that a number could mean; bound the dual norm "
                f"with clip=pathsgd.optim.DualNorm({clip}), or leave clip out"
            )
        usual_lr, usual_betas = (
            PAPER_DEFAULTS if isinstance(chosen(metric), PaperMetric) else DEFAULTS
        )
        lr = usual_lr if lr is None else lr
        betas = usual_betas if betas is None else betas
        defaults = {
            "lr": lr, "betas": (float(betas[0]), float(betas[1])), "eps": eps, "weight_decay": weight_decay,
            "maximize": maximize, "log_unit": None,
        }  # fmt: skip
        super().__init__(
            model, params, defaults, metric=metric, terms=terms, clip=clip, growth=growth, refresh_every=refresh_every,
            capturable=capturable, example_inputs=example_inputs, output=output,
        )  # fmt: skip

    def _check(self, group: dict[str, Any]) -> None:
        super()._check(group)
        if not all(0 <= beta < 1 for beta in group["betas"]):
            raise ValueError(f"betas must be in [0, 1), got {group['betas']}")
        if not 0 <= group["eps"] < math.inf:
            raise ValueError(f"eps must be finite and not negative, got {group['eps']}")

    @property
    def state_powers(self) -> dict[str, int]:
        """As in PathOptimizer; the paper's moments are those of grad / kappa, which scales as the parameter does."""
        own = (
            {"exp_avg": 1, "exp_avg_sq": 2} if isinstance(self._refresh.metric, PaperMetric) else {}
        )
        return {**super().state_powers, **own}

    def _beginning(self, p: Tensor, group: dict[str, Any]) -> dict[str, Any]:
        state = super()._beginning(p, group)
        return {"step": 0, **state} if state else state

    def _moment_names(self, group: dict[str, Any]) -> tuple[str, ...]:
        return "exp_avg", "exp_avg_sq"

    def _motion(self, part: Part, constant: float) -> Move:
        group = part.group
        beta1, beta2 = group["betas"]
        whitens = not isinstance(self._refresh.metric, PaperMetric)  # else grad / kappa, as it is
        lr, rate = rate_of(group, capturable=self.capturable)
        names = self._moment_names(group)
        if self.capturable:
            rule = UpdateRule(ADAM, betas=(beta1, beta2), eps=group["eps"], whitens=whitens)
            return Move(part, rule, -lr, names, counts_steps=True, rate=rate, corrects=True)
        # m^ / (sqrt(v^) + eps) with both bias corrections moved into the step size and eps: two passes fewer.
        step = part.states[0].get("step", 0) + 1
        correction = (1 - beta2**step) ** 0.5
        rule = UpdateRule(
            ADAM, betas=(beta1, beta2), eps=group["eps"] * correction, whitens=whitens
        )
        return Move(part, rule, -lr * correction / (1 - beta1**step), names, counts_steps=True)
