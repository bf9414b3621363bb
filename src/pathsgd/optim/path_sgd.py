"""Path-SGD, with momentum in whitened coordinates.

p <- p - lr * grad / kappa                                     the paper's rule: rho=0, clip=None
u = grad / sqrt(K),  m <- momentum * m + u,  p <- p - lr * m / sqrt(K)     in general (K: normalize.py)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pathsgd.kappa import Terms
from pathsgd.normalize import clip_factor
from pathsgd.optim.base import PathOptimizer
from pathsgd.recording import Output


class PathSGD(PathOptimizer):
    """Stochastic gradient descent in a model's path geometry; invariant under node-wise rescaling.

    model: the network itself; input shapes are learnt from its last forward pass unless `example_inputs` is given.
    lr: step size eta. rho: geometry, 0 the paper's, 1 Euclidean in balanced coordinates.
    momentum, nesterov: as in torch.optim.SGD, on whitened gradients.
    weight_decay: decoupled, p <- (1 - lr * weight_decay) p: added to the gradient it would break the invariance.
    terms: "first" uses kappa1, "both" kappa1 + kappa2. clip: bound on the dual norm of the gradient.
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
        refresh_every: int = 1,
        maximize: bool = False,
        params: Any = None,
        example_inputs: Any = None,
        output: Output = None,
        relative: bool | None = None,
    ) -> None:
        if not float(lr) >= 0:
            raise ValueError(f"lr must not be negative, got {lr}")
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum must be in [0, 1), got {momentum}")
        if nesterov and momentum == 0:
            raise ValueError("nesterov needs momentum")
        if weight_decay < 0:
            raise ValueError(f"weight_decay must not be negative, got {weight_decay}")
        defaults = {
            "lr": lr, "momentum": momentum, "nesterov": nesterov, "weight_decay": weight_decay, "rho": rho,
            "maximize": maximize,
        }  # fmt: skip
        super().__init__(
            model, params, defaults, terms=terms, clip=clip, refresh_every=refresh_every, example_inputs=example_inputs,
            output=output, relative=not (rho == 0 and clip is None) if relative is None else relative,
        )  # fmt: skip

    def _update(self, groups: Sequence[tuple[dict[str, Any], list[Tensor], list[Tensor]]]) -> None:
        factor = self._clip_factor(groups)
        for group, params, grads in groups:
            lr, sign = float(group["lr"]), -1.0 if group["maximize"] else 1.0
            if group["weight_decay"]:
                torch._foreach_mul_(params, 1 - lr * group["weight_decay"])
            inverses = [self.state[p]["inverse_metric"] for p in params]
            if not group["momentum"]:
                torch._foreach_addcmul_(params, grads, inverses, value=-lr * sign * factor)
                continue
            roots = torch._foreach_sqrt(inverses)
            whitened = torch._foreach_mul(grads, roots)
            torch._foreach_mul_(whitened, sign * factor)
            step = self._momentum(group, params, whitened)
            torch._foreach_addcmul_(params, step, roots, value=-lr)

    def _momentum(self, group: dict[str, Any], params: list[Tensor], whitened: list[Tensor]) -> list[Tensor]:
        for p, u in zip(params, whitened):
            if "momentum_buffer" not in self.state[p]:
                self.state[p]["momentum_buffer"] = torch.zeros_like(u)
        buffers = [self.state[p]["momentum_buffer"] for p in params]
        torch._foreach_mul_(buffers, group["momentum"])
        torch._foreach_add_(buffers, whitened)
        if not group["nesterov"]:
            return buffers
        torch._foreach_add_(whitened, buffers, alpha=group["momentum"])
        return whitened

    def _clip_factor(self, groups: Sequence[tuple[dict[str, Any], list[Tensor], list[Tensor]]]) -> float:
        if self.clip is None:
            return 1.0
        grads = [g for _, _, grads in groups for g in grads]
        inverses = [self.state[p]["inverse_metric"] for _, params, _ in groups for p in params]
        whitened = torch._foreach_mul(grads, torch._foreach_sqrt(inverses))
        self.dual_norm = float(torch.linalg.vector_norm(torch.stack(torch._foreach_norm(whitened))))
        return clip_factor(self.dual_norm, self.clip)
