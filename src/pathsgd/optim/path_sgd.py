"""Path-SGD, with momentum in whitened coordinates.

p <- p - lr * grad / kappa                                     the paper's rule: rho=0, clip=None
u = grad / sqrt(K),  m <- momentum * m + u,  p <- p - lr * m / sqrt(K)     in general (K: normalize.py)
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from pathsgd._native.update_fallback import GRADIENT, MOMENTUM, NESTEROV, Rule
from pathsgd.kappa import Terms
from pathsgd.optim.base import PathOptimizer
from pathsgd.optim.together import Together
from pathsgd.recording import Output


class PathSGD(PathOptimizer):
    """Stochastic gradient descent in a model's path geometry; invariant under node-wise rescaling.

    model: the network itself; input shapes are learnt from its last forward pass unless `example_inputs` is given.
    lr: step size eta. rho: geometry, 0 the paper's, 1 Euclidean in balanced coordinates.
    momentum, nesterov: as in torch.optim.SGD, on whitened gradients.
    weight_decay: decoupled, p <- (1 - lr * weight_decay) p: added to the gradient it would break the invariance.
    terms: "first" uses kappa1, "both" kappa1 + kappa2. clip: bound on the dual norm of the gradient.
    growth: bound on how much a step may change what a recurrent matrix does to a signal over all its uses, as a log
        factor (optim/base.py); it removes the loss spikes of ReLU RNNs.
    refresh_every: steps between two measurements of the metric.
    relative: divide kappa by gamma^2. None: yes, except for rho=0 with clip=None, which is the paper's rule to the
        letter, p <- p - lr * grad / kappa.

    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    >>> optimizer = PathSGD(model, lr=0.1)
    >>> model(torch.ones(3, 4)).pow(2).mean().backward()
    >>> optimizer.step()
    """

    def __init__(
        self,
        model: nn.Module,
        lr: float | Tensor = 1e-2,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        rho: float = 1.0,
        *,
        terms: Terms = "first",
        clip: float | None = 1.0,
        growth: float | None = 0.3,
        refresh_every: int = 1,
        maximize: bool = False,
        differentiable: bool = False,
        params: Any = None,
        example_inputs: Any = None,
        output: Output = None,
        relative: bool | None = None,
    ) -> None:
        defaults = {
            "lr": lr, "momentum": momentum, "nesterov": nesterov, "weight_decay": weight_decay, "rho": rho,
            "maximize": maximize, "differentiable": differentiable,
        }  # fmt: skip
        if relative is None:
            relative = not (rho == 0 and clip is None)
        super().__init__(
            model, params, defaults, terms=terms, clip=clip, growth=growth, refresh_every=refresh_every,
            example_inputs=example_inputs, output=output, relative=relative,
        )  # fmt: skip

    def _check(self, group: dict[str, Any]) -> None:
        super()._check(group)
        if not 0 <= group["momentum"] < 1:
            raise ValueError(f"momentum must be in [0, 1), got {group['momentum']}")
        if group["nesterov"] and group["momentum"] == 0:
            raise ValueError("nesterov needs momentum")

    def _moment_names(self, group: dict[str, Any]) -> tuple[str, ...]:
        return ("momentum_buffer",) if group["momentum"] else ()

    def _rule(self, part: Together, factor: float) -> tuple[Rule, float]:
        group = part.group
        lr, momentum = float(group["lr"]), group["momentum"]
        if not momentum:
            return Rule(GRADIENT), -lr * factor
        return Rule(NESTEROV if group["nesterov"] else MOMENTUM, factor, momentum), -lr
