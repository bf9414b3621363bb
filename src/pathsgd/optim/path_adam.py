"""Adam in path geometry.

    invariant   u = grad / sqrt(K);  m, v: Adam's moments of u;  p <- p - lr * m^ / (sqrt(v^) + eps) / sqrt(K)
    paper       m, v: Adam's moments of grad / kappa;            p <- p - lr * m^ / (sqrt(v^) + eps)

The moments of u do not change when units are rescaled, so neither does the trajectory of the function. The paper's
form loses that: Adam divides by the size of its input, and with it kappa's scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from pathsgd.kappa import Terms
from pathsgd.normalize import clip_factor
from pathsgd.optim.base import PathOptimizer
from pathsgd.recording import Output


class PathAdam(PathOptimizer):
    """Adam (Kingma & Ba 2015) on whitened gradients; invariant under node-wise rescaling unless geometry="paper".

    model: the network itself; input shapes are learnt from its last forward pass unless `example_inputs` is given.
    lr, betas, eps: Adam's alpha, (beta1, beta2), epsilon. weight_decay: decoupled, p <- (1 - lr * weight_decay) p.
    geometry: "invariant", or "paper" for Adam fed with grad / kappa.
    rho: 0 the paper's geometry, 1 Euclidean in balanced coordinates. clip: bound on the dual norm of the gradient.
    terms, refresh_every: as in PathSGD.

    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    >>> optimizer = PathAdam(model, lr=1e-3)
    >>> model(torch.ones(3, 4)).pow(2).mean().backward()
    >>> optimizer.step()
    """

    def __init__(
        self,
        model: nn.Module,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        geometry: Literal["invariant", "paper"] = "invariant",
        rho: float = 0.5,
        *,
        terms: Terms = "first",
        clip: float | None = 1.0,
        refresh_every: int = 1,
        maximize: bool = False,
        params: Any = None,
        example_inputs: Any = None,
        output: Output = None,
    ) -> None:
        if not float(lr) >= 0:
            raise ValueError(f"lr must not be negative, got {lr}")
        if not all(0 <= b < 1 for b in betas):
            raise ValueError(f"betas must be in [0, 1), got {betas}")
        if eps < 0 or weight_decay < 0:
            raise ValueError("eps and weight_decay must not be negative")
        if geometry not in ("invariant", "paper"):
            raise ValueError(f"geometry must be 'invariant' or 'paper', got {geometry!r}")
        self._kind = geometry
        paper = geometry == "paper"
        defaults = {
            "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "rho": 0.0 if paper else rho,
            "maximize": maximize,
        }  # fmt: skip
        super().__init__(
            model, params, defaults, terms=terms, clip=clip, refresh_every=refresh_every, example_inputs=example_inputs,
            output=output, relative=True,
        )  # fmt: skip

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_kind": self._kind}

    def _update(self, groups: Sequence[tuple[dict[str, Any], list[Tensor], list[Tensor]]]) -> None:
        roots = [torch._foreach_sqrt([self.state[p]["inverse_metric"] for p in params]) for _, params, _ in groups]
        whitened = [torch._foreach_mul(grads, r) for (_, _, grads), r in zip(groups, roots)]
        norms = [n for us in whitened for n in torch._foreach_norm(us)]
        self.dual_norm = float(torch.linalg.vector_norm(torch.stack(norms)))
        factor = clip_factor(self.dual_norm, self.clip)
        for (group, params, _), root, u in zip(groups, roots, whitened):
            torch._foreach_mul_(u, -factor if group["maximize"] else factor)
            if self._kind == "paper":
                torch._foreach_mul_(u, root)  # grad / kappa, up to the constant gamma^2 that Adam divides out again
            self._adam(group, params, u, root)

    def _adam(self, group: dict[str, Any], params: list[Tensor], u: list[Tensor], root: Sequence[Tensor]) -> None:
        beta1, beta2 = group["betas"]
        lr = float(group["lr"])
        for p in params:
            state = self.state[p]
            if "exp_avg" not in state:
                state["step"] = 0
                state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(p), torch.zeros_like(p)
            state["step"] += 1
        if group["weight_decay"]:
            torch._foreach_mul_(params, 1 - lr * group["weight_decay"])
        averages = [self.state[p]["exp_avg"] for p in params]
        squares = [self.state[p]["exp_avg_sq"] for p in params]
        steps = [self.state[p]["step"] for p in params]
        torch._foreach_lerp_(averages, u, 1 - beta1)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, u, u, value=1 - beta2)
        denominators = torch._foreach_sqrt(squares)
        torch._foreach_div_(denominators, [(1 - beta2**t) ** 0.5 for t in steps])
        torch._foreach_add_(denominators, group["eps"])
        directions = torch._foreach_div(averages, denominators)
        torch._foreach_mul_(directions, [-lr / (1 - beta1**t) for t in steps])
        if self._kind == "invariant":
            torch._foreach_addcmul_(params, directions, root)
        else:
            torch._foreach_add_(params, directions)
