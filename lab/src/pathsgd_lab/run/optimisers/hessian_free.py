"""Hessian-free optimisation of recurrent nets (Martens, 2010; Martens and Sutskever, 2011).

One outer step at parameters p, loss f, gradient g:

    solve    (G + lambda (I + mu S)) d = -g      conjugate gradients, from decay * previous d
    choose   the kept iterate of d with the least f(p + d), going backwards while it falls
    compare  rho = (f(p + d) - f(p)) / (g.d + d.G.d / 2)
             rho > 3/4: lambda *= 2/3;  rho < 1/4: lambda *= 3/2
    apply    p += a d, the first a in 1, 0.8, 0.64, ... with f(p + a d) <= f(p) + 0.01 a g.d

    G       Gauss-Newton matrix J_y^T (d^2 f / d y^2) J_y, never formed: products by jvp and vjp
    S       structural damping: Gauss-Newton matrix J_h^T J_h / (T B) of |h - h(p)|^2 / (2 T B),
            which keeps the hidden states h (T, B, H) from changing too much along d
    lambda  damping, mu its structural part

Deviates from the sources: gradient, curvature and comparison use the same batch; conjugate
gradients (scipy's) stop by their residual, not by their progress, and have no preconditioner; the
distance of hidden states is the squared one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator, cg
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp, vjp
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from pathsgd_lab.run.optimisers.base import Optimiser, Stepper
from pathsgd_lab.systems import Losses, SequenceNet, System
from pathsgd_lab.tasks import Batch, State, Task

LossFunction = Callable[[Tensor, Tensor], Tensor]


class _OutputsAndHidden(nn.Module):
    """The model from a given state to its outputs and hidden states."""

    def __init__(self, model: SequenceNet, state: State | None) -> None:
        super().__init__()
        self.model, self.state = model, state

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        outputs, _, hidden = self.model.forward_with_hidden(inputs, self.state)
        return outputs, hidden


class Curvature:
    """Products with G + weight J_h^T J_h at the present parameters: one pass forth, one back.

    Args:
        model, loss, batch, state: the loss is that of the batch, from the carried state.
        parameters: those that v lists, flattened and concatenated.
        weight: factor of the structural part.
    """

    def __init__(
        self, model: SequenceNet, loss: LossFunction, parameters: Sequence[Tensor],
        batch: Batch, state: State | None, weight: float,
    ) -> None:  # fmt: skip
        network = _OutputsAndHidden(model, state)
        names = {id(p): name for name, p in network.named_parameters()}

        def outputs_and_hidden(*values: Tensor) -> tuple[Tensor, Tensor]:
            named = {names[id(p)]: value for p, value in zip(parameters, values, strict=True)}
            return functional_call(network, named, (batch.inputs,))

        def loss_of(outputs: Tensor) -> Tensor:
            return loss(outputs, batch.targets)

        self.weight, self.function = weight, outputs_and_hidden
        self.at = tuple(p.detach() for p in parameters)
        # torch annotates vjp and jvp as if every function had further results.
        at_outputs: Any = vjp(outputs_and_hidden, *self.at)
        (outputs, _), self.transposed = at_outputs
        _, self.loss_hessian = vjp(grad(loss_of), outputs)  # type: ignore[misc]

    def __matmul__(self, v: np.ndarray) -> np.ndarray:
        """J_y^T H J_y v + weight J_h^T J_h v, H the Hessian of the loss in the outputs."""
        pieces = torch.from_numpy(v).to(self.at[0]).split([p.numel() for p in self.at])
        tangents = tuple(piece.view_as(p) for piece, p in zip(pieces, self.at, strict=True))
        pushed: Any = jvp(self.function, self.at, tangents)
        by_outputs, by_hidden = pushed[1]
        (bent,) = self.loss_hessian(by_outputs)
        return _flat(self.transposed((bent, self.weight * by_hidden)))


class HessianFree(torch.optim.Optimizer):
    """Gauss-Newton steps by conjugate gradients, with Levenberg-Marquardt and structural damping.

    Unlike other optimisers it needs the batch, not gradients: ``losses = optimiser.step(batch,
    state)``.

    Args:
        model: a net whose parts have forward-mode derivatives.
        loss: the task's loss of (outputs, targets).
        damping: first lambda; 0 for none at all.
        structural: mu; 0 for none.
        cg_iterations, cg_tolerance: conjugate gradients stop after so many steps, or when the
        residual has fallen by
            this factor.
        decay: share of the last direction that conjugate gradients start from.
    """

    def __init__(
        self,
        model: SequenceNet,
        loss: LossFunction,
        damping: float = 1.0,
        structural: float = 1.0 / 30.0,
        cg_iterations: int = 100,
        cg_tolerance: float = 1e-4,
        decay: float = 0.95,
    ) -> None:
        if min(damping, structural, cg_tolerance, decay) < 0.0 or cg_iterations < 1:
            raise ValueError(
                "damping, structural, cg_tolerance and decay must be at least 0, cg_iterations at "
                "least 1"
            )
        self.model, self.loss = model, loss
        settings = {
            "damping": damping,
            "structural": structural,
            "cg_iterations": cg_iterations,
            "cg_tolerance": cg_tolerance,
            "decay": decay,
        }
        super().__init__([p for p in model.parameters() if p.requires_grad], settings)

    def step(self, batch: Batch, state: State | None = None) -> Losses:  # type: ignore[override]
        """One outer step on ``batch``; loss and final state are those before the step.

        Where the gradient is not finite nothing moves and the loss is reported as not a number.
        """
        group = self.param_groups[0]
        parameters: list[nn.Parameter] = group["params"]
        outputs, new_state = self.model(batch.inputs, state)
        loss = self.loss(outputs, batch.targets)
        gradient = _flat(torch.autograd.grad(loss, parameters))
        value = loss.detach() if np.isfinite(gradient).all() else torch.full_like(loss, math.nan)
        losses = Losses(value, value, tuple(part.detach() for part in new_state))
        if not value.isfinite() or not gradient.any():
            return losses

        candidates = self._solve(batch, state, gradient)
        origin = parameters_to_vector(parameters).detach().clone()

        def loss_at(direction: np.ndarray) -> float:
            vector_to_parameters(origin + torch.from_numpy(direction).to(origin), parameters)
            with torch.no_grad():
                value = self.loss(self.model(batch.inputs, state)[0], batch.targets).item()
            return value if math.isfinite(value) else math.inf

        start = losses.loss.item()
        direction, reached = _best_candidate(candidates, loss_at)
        self._adapt_damping(batch, state, gradient, direction, reached - start, origin)
        rate = _line_search(loss_at, start, direction, reached, float(gradient @ direction))
        vector_to_parameters(origin + rate * torch.from_numpy(direction).to(origin), parameters)
        self._remember(candidates[-1])
        return losses

    def _curvature(self, batch: Batch, state: State | None, weight: float) -> Curvature:
        """G + weight J_h^T J_h at the present parameters."""
        return Curvature(
            self.model, self.loss, self.param_groups[0]["params"], batch, state, weight
        )

    def _multiply(self, curvature: Curvature, v: np.ndarray) -> np.ndarray:
        """Curvature times v."""
        try:
            return curvature @ v
        except NotImplementedError as error:
            raise ValueError(
                "hessian-free steps need forward-mode derivatives, which a part of "
                f"{type(self.model).__name__} lacks: choose another optimiser"
            ) from error

    def _solve(self, batch: Batch, state: State | None, gradient: np.ndarray) -> list[np.ndarray]:
        """Iterates of conjugate gradients worth looking at, the last one last."""
        group = self.param_groups[0]
        damping: float = group["damping"]
        steps, sequences = batch.inputs.shape[:2]
        curvature = self._curvature(
            batch, state, damping * group["structural"] / (steps * sequences)
        )

        def multiply(v: np.ndarray) -> np.ndarray:
            return self._multiply(curvature, v.ravel()) + damping * v.ravel()

        kept: list[np.ndarray] = []
        next_kept, iteration = 1.0, 0

        def keep(iterate: np.ndarray) -> None:
            # Spaced by a factor of 1.3: neighbours differ little, and each costs a forward pass to
            # look at.
            nonlocal next_kept, iteration
            iteration += 1
            if iteration >= math.ceil(next_kept):
                kept.append(iterate.copy())
                next_kept *= 1.3

        operator = LinearOperator((gradient.size, gradient.size), matvec=multiply, dtype=np.float64)
        solution, _ = cg(
            operator,
            -gradient,
            x0=group["decay"] * self._remembered(gradient.size),
            rtol=group["cg_tolerance"],
            maxiter=group["cg_iterations"],
            callback=keep,
        )
        return [*kept, solution]

    def _adapt_damping(
        self,
        batch: Batch,
        state: State | None,
        gradient: np.ndarray,
        direction: np.ndarray,
        change: float,
        origin: Tensor,
    ) -> None:
        """Levenberg-Marquardt: less damping where the quadratic model predicts the loss."""
        group = self.param_groups[0]
        vector_to_parameters(origin, group["params"])
        product = self._multiply(self._curvature(batch, state, 0.0), direction)
        foretold = float(gradient @ direction + 0.5 * direction @ product)
        # A model that foretells no decrease deserves no trust, whatever the ratio of two signs
        # says.
        rho = change / foretold if foretold < 0.0 else -math.inf
        if rho > 0.75:
            group["damping"] *= 2.0 / 3.0
        elif rho < 0.25:
            group["damping"] *= 1.5

    def _remembered(self, size: int) -> np.ndarray:
        parts = [self.state[p].get("direction") for p in self.param_groups[0]["params"]]
        if any(part is None for part in parts):
            return np.zeros(size)
        return _flat(parts)

    def _remember(self, direction: np.ndarray) -> None:
        start = 0
        for p in self.param_groups[0]["params"]:
            part = torch.from_numpy(direction[start : start + p.numel()]).to(p).view_as(p)
            self.state[p]["direction"] = part.clone()
            start += p.numel()


def _flat(tensors: list[Tensor] | tuple[Tensor, ...]) -> np.ndarray:
    """One float64 vector of many tensors: conjugate gradients need the digits."""
    return torch.cat([tensor.detach().flatten() for tensor in tensors]).double().numpy()


def _best_candidate(
    candidates: list[np.ndarray], loss_at: Callable[[np.ndarray], float]
) -> tuple[np.ndarray, float]:
    """Go back from the last candidate as long as the loss gets smaller."""
    best, value = candidates[-1], loss_at(candidates[-1])
    for candidate in reversed(candidates[:-1]):
        earlier = loss_at(candidate)
        if earlier >= value:
            break
        best, value = candidate, earlier
    return best, value


def _line_search(
    loss_at: Callable[[np.ndarray], float],
    start: float,
    direction: np.ndarray,
    value: float,
    slope: float,
) -> float:
    """The first rate in 1, 0.8, 0.64, ... with enough decrease; 0 if there is none among sixty."""
    rate = 1.0
    for _ in range(60):
        if value <= start + 0.01 * rate * min(slope, 0.0):
            return rate
        rate *= 0.8
        value = loss_at(rate * direction)
    return 0.0


class HessianFreeStepper(Stepper):
    """The optimiser makes its own passes over the batch."""

    def __init__(self, optimiser: HessianFree) -> None:
        self.optimiser: HessianFree = optimiser

    def step(self, batch: Batch, state: State | None) -> tuple[Tensor, State]:
        """See ``Stepper``."""
        losses = self.optimiser.step(batch, state)
        return losses.loss, losses.state

    def scale_rate(self, factor: float) -> None:
        """Hessian-free steps have no rate; their length is found by a line search."""


@dataclass(frozen=True)
class HessianFreeOptimiser(Optimiser):
    """Gauss-Newton steps by conjugate gradients (Martens, 2010), for nets unrolled step by step."""

    name: ClassVar[str] = "hessian-free"
    title: ClassVar[str] = "Hessian-free"

    damping: float = 1.0
    """First value of the damping."""
    structural: float = 1.0 / 30.0
    """Weight of the structural part of the damping."""
    cg_iterations: int = 100
    """Steps of conjugate gradients at most."""

    def stepper(self, system: System, model: SequenceNet, task: Task) -> HessianFreeStepper:
        """Bind to a model whose parts have forward-mode derivatives."""
        if any(isinstance(part, nn.RNNBase) for part in model.modules()):
            raise ValueError(
                f"hessian-free needs a net unrolled step by step (mrnn_hf), which {system.name} is "
                "not"
            )
        return HessianFreeStepper(
            HessianFree(model, task.loss, self.damping, self.structural, self.cg_iterations)
        )
