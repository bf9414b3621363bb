"""Adam in path geometry.

    invariant   u = grad / sqrt(K);  m, v: Adam's moments of u;  p <- p - lr * m^ / (sqrt(v^) + eps) / sqrt(K)
    paper       m, v: Adam's moments of grad / kappa;            p <- p - lr * m^ / (sqrt(v^) + eps)

The moments of u do not change when units are rescaled, so neither does the trajectory of the function. The paper's
form loses that: Adam divides by the size of its input, and with it kappa's scale.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from torch import Tensor, nn

from pathsgd._native.update_fallback import ADAM, Rule
from pathsgd.kappa import Terms
from pathsgd.measure import Measure
from pathsgd.optim.base import PathOptimizer
from pathsgd.optim.together import Together
from pathsgd.recording import Output


class PathAdam(PathOptimizer):
    """Adam (Kingma & Ba 2015) on whitened gradients; invariant under node-wise rescaling unless geometry="paper".

    model: the network itself; input shapes are learnt from its last forward pass unless `example_inputs` is given.
    lr, betas, eps: Adam's alpha, (beta1, beta2), epsilon. weight_decay: decoupled, p <- (1 - lr * weight_decay) p.
    geometry: "invariant", or "paper" for Adam fed with grad / kappa (rho = 0, no bound on growth).
    rho: 0 the paper's geometry, 1 Euclidean in balanced coordinates. clip: bound on the dual norm of the gradient.
    terms, growth, refresh_every: as in PathSGD.
    absolute: rates in units of the weights, as Adam's are, not as a share of every matrix (absolute.py): the rate of a
        long run need not be lower because its weights have grown. It is still invariant.

    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    >>> optimizer = PathAdam(model, lr=1e-3)
    >>> model(torch.ones(3, 4)).pow(2).mean().backward()
    >>> optimizer.step()
    """

    alike: ClassVar[tuple[str, ...]] = ("step",)

    def __init__(
        self,
        model: nn.Module,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.99),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        geometry: Literal["invariant", "paper"] = "invariant",
        rho: float = 1.0,
        *,
        terms: Terms = "first",
        clip: float | None = 1.0,
        growth: float | None = 0.3,
        refresh_every: int = 1,
        absolute: bool = False,
        maximize: bool = False,
        differentiable: bool = False,
        params: Any = None,
        example_inputs: Any = None,
        output: Output = None,
    ) -> None:
        if geometry not in ("invariant", "paper"):
            raise ValueError(f"geometry must be 'invariant' or 'paper', got {geometry!r}")
        if absolute and geometry == "paper":
            raise ValueError("absolute=True is for geometry='invariant'; the paper's steps are absolute as they are")
        self._kind = geometry
        defaults = {
            "lr": lr, "betas": (float(betas[0]), float(betas[1])), "eps": eps, "weight_decay": weight_decay,
            "rho": 0.0 if geometry == "paper" else rho, "maximize": maximize, "differentiable": differentiable,
        }  # fmt: skip
        super().__init__(
            model, params, defaults, terms=terms, clip=clip, growth=None if geometry == "paper" else growth,
            refresh_every=refresh_every, example_inputs=example_inputs, output=output, relative=True,
            absolute=absolute,
        )  # fmt: skip

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_kind": self._kind}

    def _check(self, group: dict[str, Any]) -> None:
        super()._check(group)
        if not all(0 <= beta < 1 for beta in group["betas"]):
            raise ValueError(f"betas must be in [0, 1), got {group['betas']}")
        if not group["eps"] >= 0:
            raise ValueError(f"eps must not be negative, got {group['eps']}")
        if self._kind == "paper" and group["rho"]:
            raise ValueError(f"geometry='paper' has rho = 0, got {group['rho']}")

    def _log_unit(self, group: dict[str, Any], measured: Measure) -> float | None:
        # kappa itself may leave the range of any dtype. In units of gamma^2 at the first step it does not, and Adam
        # divides a constant out again (eps is added to grad / kappa in this unit).
        return group.setdefault("log_gamma_sq_at_start", measured.log_scale) if self._kind == "paper" else None

    def _moment_names(self, group: dict[str, Any]) -> tuple[str, ...]:
        return "exp_avg", "exp_avg_sq"

    def _rule(self, part: Together, factor: float) -> tuple[Rule, float]:
        group = part.group
        step = part.states[0].get("step", 0) + 1
        for state in part.states:
            state["step"] = step
        beta1, beta2 = group["betas"]
        # m^ / (sqrt(v^) + eps) with both bias corrections moved into the step size and eps: two passes fewer.
        correction = (1 - beta2**step) ** 0.5
        invariant = self._kind == "invariant"  # else grad / kappa, up to the constant that Adam divides out again
        rule = Rule(ADAM, factor, betas=(beta1, beta2), eps=group["eps"] * correction, whitens=invariant)
        return rule, -float(group["lr"]) * correction / (1 - beta1**step)
