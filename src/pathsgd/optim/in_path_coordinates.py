"""Any torch optimiser in path coordinates, which rescaling the units does not change.

    q = p sqrt(K)        u = grad / sqrt(K)        d = the optimiser's own step of q along u
    p <- p + d / sqrt(K)

q and u are invariant, and so is whatever the optimiser computes from them: moments, signs, singular
vectors, eigenbases. PathSGD and PathAdam do the same for momentum and Adam in one pass over memory.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer

from pathsgd.distributed.sharded import refuse_sharded
from pathsgd.metric.bounds import DualNorm, bound_of, clip_factor
from pathsgd.metric.choice import MetricChoice, with_coordinates
from pathsgd.metric.geometry import Measure
from pathsgd.network.record.record import Output
from pathsgd.optim.base import Alone, PathOptimizer
from pathsgd.optim.path_sgd import PathSGD
from pathsgd.optim.plan import Bound, Part
from pathsgd.paths.kappa import Terms

PATH = "path_coordinates"
"""The entry of the state dict beside the optimiser's own."""


class InPathCoordinates(Optimizer):
    """A torch optimiser in a model's path coordinates; invariant under node-wise rescaling.

    optimizer: any optimiser of the model's parameters whose step depends on their gradients and
        values only. Its groups are shared: give this optimiser to schedulers, and save its state.
    model: the network itself; the metric needs its structure.
    metric: "absolute", "relative" or a `pathsgd.Metric`.
    terms: "first" uses kappa1, "both" kappa1 + kappa2.
    clip: bound on the gradient's dual norm before the optimiser sees it; None: no bound. "auto": 1.
    growth: bound on the growth rate of every recurrent matrix, uses * log(rate), and on steps by
        the room that the rates leave, as in PathAdam. None: no bound. "auto": 3.
    refresh_every: steps between two measurements of the metric.
    example_inputs: inputs of the shapes to measure for; None: those of the last forward pass.
    output: the result of the model to measure, an index, a key or a function; None takes the first
        tensor.

    Values that an optimiser keeps from step to step (Prodigy's starting point) are in the
    coordinates of the step that stored them. Weight decay is the optimiser's own; decoupled decay
    means the same as without coordinates.

    >>> model = nn.Sequential(nn.Linear(4, 8, bias=False), nn.ReLU(), nn.Linear(8, 1, bias=False))
    >>> optimizer = InPathCoordinates(torch.optim.Muon(model.parameters(), lr=1e-2), model)
    >>> model(torch.ones(3, 4)).pow(2).mean().backward()
    >>> optimizer.step()
    """

    def __init__(
        self,
        optimizer: Optimizer,
        model: nn.Module,
        metric: MetricChoice = "absolute",
        *,
        terms: Terms = "first",
        clip: Bound | DualNorm = "auto",
        growth: Bound = "auto",
        refresh_every: int = 1,
        example_inputs: Any = None,
        output: Output = None,
    ) -> None:
        _refuse_unfit(optimizer)
        refuse_sharded(model, "InPathCoordinates", "use PathSGD or PathAdam")
        metric = with_coordinates(metric, ", or pathsgd.optim.wrap")
        self.clip = bound_of(metric.usual_clip if clip == "auto" else clip, metric)
        self.dual_norm = math.nan
        """Length of the last gradient in the dual metric, before clipping."""
        # Takes steps that are given to it: it measures, bounds and moves.
        self._mover = PathSGD(
            model, 1.0, metric=metric, terms=terms, clip=None, growth=growth,
            refresh_every=refresh_every,
            params=[p for group in optimizer.param_groups for p in group["params"]],
            example_inputs=example_inputs, output=output,
        )  # fmt: skip
        self.inner = optimizer
        """The optimiser itself."""
        self._alone = Alone(f"InPathCoordinates of {type(optimizer).__name__}")
        super().__init__(
            [p for group in optimizer.param_groups for p in group["params"]],
            dict(optimizer.defaults),
        )
        self._share()

    def _share(self) -> None:
        """Have the optimiser's own groups and states, not copies of them."""
        self.param_groups, self.state = self.inner.param_groups, self.inner.state

    @property
    def growth_rates(self) -> dict[str, Tensor]:
        """Growth rates of the recurrent matrices before the last bound; 0-d, by name."""
        return self._mover.growth_rates

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters of the model, as in torch.optim."""
        if not hasattr(self, "inner") or self.param_groups is not self.inner.param_groups:
            super().add_param_group(param_group)  # torch's constructor, whose groups are dropped
            return
        known = {id(p) for group in self.param_groups for p in group["params"]}
        self.inner.add_param_group(param_group)
        added = [p for group in self.param_groups for p in group["params"] if id(p) not in known]
        try:
            self._mover.add_param_group({"params": added})
        except (TypeError, ValueError):
            self.param_groups.pop()
            raise

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """One update; with a closure, the gradients are those it leaves behind."""
        with self._alone:
            loss = None
            if closure is not None:
                with torch.enable_grad():
                    loss = closure()
            parts = self._mover.parts_with_gradients()
            if parts:
                self._take(parts, self._mover.keep_up(parts))
            return loss

    def _take(self, parts: list[Part], measured: Measure | None) -> None:
        with _gradients_restored(parts):
            moved = self._moved(parts)
            if moved is None:
                return
            for p, step, whitening in zip(_owners(parts), moved, _whitenings(parts)):
                # What the mover multiplies by 1/K is this step in the parameter's own coordinates.
                p.grad = torch.where(whitening > 0, -step / whitening, 0.0).to(p)
            self._mover.advance(parts, measured)

    def _moved(self, parts: list[Part]) -> list[Tensor] | None:
        """The optimiser's step in path coordinates; None if a gradient is not finite (no step)."""
        owners, whitenings = _owners(parts), _whitenings(parts)
        seen = [p.grad * whitening for p, whitening in zip(owners, whitenings)]  # type: ignore[operator]
        self.dual_norm = float(torch.stack([u.double().square().sum() for u in seen]).sum().sqrt())
        factor = clip_factor(self.dual_norm, math.inf if self.clip is None else self.clip.limit)
        if factor == 0:
            return None
        values = [p.detach().clone() for p in owners]
        starts = [torch.where(w > 0, p / w, 0.0).to(p) for p, w in zip(values, whitenings)]
        try:
            for p, u, start in zip(owners, seen, starts):
                p.copy_(start)  # in place: whoever holds a view of the parameter keeps it
                p.grad = (u * factor).to(p)
            self.inner.step()
            return [p - start for p, start in zip(owners, starts)]
        finally:
            for p, value in zip(owners, values):
                p.copy_(value)

    def state_dict(self) -> dict[str, Any]:
        """The optimiser's own, and what the metric and the bounds keep."""
        return {**self.inner.state_dict(), PATH: self._mover.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue where `state_dict` was taken."""
        if PATH not in state_dict:
            raise ValueError(
                f"the state has no entry '{PATH}': it is that of an optimiser in other "
                "coordinates, whose moments mean something else here; begin with a new one"
            )
        own = {key: value for key, value in state_dict.items() if key != PATH}
        self._mover.load_state_dict(state_dict[PATH])
        self.inner.load_state_dict(own)
        self._share()


def _refuse_unfit(optimizer: Optimizer) -> None:
    """Refuse what is no optimiser, or none that a change of coordinates leaves in order."""
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"the first argument is a torch optimiser, not {type(optimizer).__name__}")
    if isinstance(optimizer, (PathOptimizer, InPathCoordinates)):
        raise TypeError(f"{type(optimizer).__name__} steps in path coordinates already")
    if isinstance(optimizer, LBFGS):
        raise TypeError(
            "LBFGS searches along lines by losses of its own: it cannot step in other coordinates"
        )
    if hasattr(optimizer, "eval"):
        raise TypeError(
            f"{type(optimizer).__name__} changes parameters outside of its steps (eval, train), "
            "where they are not in path coordinates; use an optimiser that only steps"
        )


def _owners(parts: list[Part]) -> list[Tensor]:
    return [p for part in parts for p in part.owners]


def _whitenings(parts: list[Part]) -> list[Tensor]:
    return [state.dense_whitening() for part in parts for state in part.states]


@contextlib.contextmanager
def _gradients_restored(parts: list[Part]) -> Iterator[None]:
    """A time after which every gradient is what it was before."""
    kept = [(p, p.grad) for p in _owners(parts)]
    try:
        yield
    finally:
        for p, gradient in kept:
            p.grad = gradient
