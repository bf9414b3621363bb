"""What both path optimisers share: the model, its input shapes, the metric and when it is measured again."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pathsgd.kappa import Terms
from pathsgd.measure import Geometry, Measure, shape_key
from pathsgd.normalize import inverse_metric, refuse_sparse
from pathsgd.recorder import PathTensor
from pathsgd.recording import Output


class LastInputs:
    """A forward pre-hook that remembers the shapes of the model's last inputs, and none of their data."""

    def __init__(self) -> None:
        self.key: tuple[Any, ...] | None = None
        self.inputs: tuple[Any, ...] | None = None

    def __call__(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if kwargs:
            args = _positional(model, args, kwargs)
        if any(isinstance(a, PathTensor) for a in args):
            return  # a measurement under way
        key = shape_key(args)
        if key != self.key:
            self.key, self.inputs = key, tuple(_without_data(a) for a in args)


def _positional(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    bound = inspect.signature(model.forward).bind(*args, **kwargs)
    if bound.kwargs:
        raise TypeError(
            f"the model takes keyword-only inputs {sorted(bound.kwargs)}; give the optimiser example_inputs="
        )
    return bound.args


def _without_data(a: Any) -> Any:
    """The same shape and dtype from one zero; integer vectors (lengths) are structure and kept."""
    if not isinstance(a, Tensor) or (a.dim() == 1 and not a.is_floating_point()):
        return a
    return torch.zeros((), dtype=a.dtype, device=a.device).expand(a.shape)


class PathOptimizer(Optimizer):
    """An optimiser that steps in a model's path geometry.

    Subclasses compute a step from whitened gradients; this class knows when and how to measure. The metric's inverse
    is kept in each parameter's state, so that a resumed run continues bit for bit between two measurements.
    """

    def __init__(
        self,
        model: nn.Module,
        params: Any,
        defaults: dict[str, Any],
        *,
        terms: Terms,
        clip: float | None,
        refresh_every: int,
        example_inputs: Any,
        output: Output,
        relative: bool,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(
                f"the first argument is the model itself (a torch.nn.Module), not {type(model).__name__}: "
                "the metric needs its structure; choose parameters with params="
            )
        if terms not in ("first", "both"):
            raise ValueError(f"terms must be 'first' or 'both', got {terms!r}")
        if clip is not None and not clip > 0:
            raise ValueError(f"clip must be positive or None, got {clip}")
        if refresh_every < 1:
            raise ValueError(f"refresh_every must be at least 1, got {refresh_every}")
        self.terms, self.clip, self.refresh_every, self.relative = terms, clip, int(refresh_every), relative
        self._geometry = Geometry(model, output)
        self.log_gamma_sq = math.nan
        """log gamma^2 when the metric was last measured."""
        self.dual_norm = math.nan
        """Length of the last gradient in the dual metric, before clipping."""
        self._example = None if example_inputs is None else _as_tuple(example_inputs)
        self._last = LastInputs()
        model.register_forward_pre_hook(self._last, with_kwargs=True)
        super().__init__(list(model.parameters()) if params is None else params, defaults)

    @property
    def model(self) -> nn.Module:
        return self._geometry.model

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        names = {id(p): n for n, p in self.model.named_parameters()}
        for p in self.param_groups[-1]["params"]:
            if id(p) not in names:
                self.param_groups.pop()
                raise ValueError(f"a parameter of shape {tuple(p.shape)} does not belong to the model")
        self._names = names

    def __getstate__(self) -> dict[str, Any]:
        own = (
            "terms",
            "clip",
            "refresh_every",
            "relative",
            "_geometry",
            "log_gamma_sq",
            "dual_norm",
            "_example",
            "_last",
        )
        return {**super().__getstate__(), **{name: getattr(self, name) for name in own}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "_geometry" in state:
            self._names = {id(p): n for n, p in self.model.named_parameters()}

    def inputs(self) -> tuple[Any, ...]:
        if self._example is not None:
            return self._example
        if self._last.inputs is None:
            raise RuntimeError(
                "the optimiser has seen no forward pass of its model, so it does not know the shape of its inputs; "
                "run the model before step(), or give example_inputs="
            )
        return self._last.inputs

    def measure(self) -> Measure:
        """The geometry at the current weights, for the shapes of the last forward pass."""
        return self._geometry.measure(self.inputs(), self.terms)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """One update; with a closure, the gradients are those it leaves behind."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        groups = [(group, [p for p in group["params"] if p.grad is not None]) for group in self.param_groups]
        groups = [(group, params) for group, params in groups if params]
        if groups:
            self._refresh(groups)
            self._update([(g, params, [p.grad for p in params]) for g, params in groups])
        return loss

    def _update(self, groups: Sequence[tuple[dict[str, Any], list[Tensor], list[Tensor]]]) -> None:
        raise AssertionError("subclasses define the update")

    def _refresh(self, groups: Sequence[tuple[dict[str, Any], list[Tensor]]]) -> None:
        """Measure again when it is time, or when a parameter has no metric yet."""
        fresh = any("inverse_metric" not in self.state[p] for _, params in groups for p in params)
        age = min((self.state[p].get("age", 0) for _, params in groups for p in params), default=0)
        due = fresh or age % self.refresh_every == 0
        if due:
            measured = self.measure()
            self.log_gamma_sq = measured.log_gamma_sq
            parameters = dict(self.model.named_parameters())
            by_rho: dict[float, dict[str, Tensor]] = {}
        for group, params in groups:
            refuse_sparse([self._names[id(p)] for p in params], [p.grad for p in params])
            rho = group["rho"]
            if due and rho not in by_rho:
                by_rho[rho] = inverse_metric(measured, parameters, rho, relative=self.relative)
            for p in params:
                state = self.state[p]
                if due:
                    state["inverse_metric"] = by_rho[rho][self._names[id(p)]].to(p)
                state["age"] = state.get("age", 0) + 1


def _as_tuple(inputs: Any) -> tuple[Any, ...]:
    return tuple(_without_data(a) for a in (inputs if isinstance(inputs, (tuple, list)) else (inputs,)))
