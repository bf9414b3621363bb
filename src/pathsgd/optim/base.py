"""What all path optimisers share: the contract of torch.optim, and the order in which a step goes.

parts (who has a gradient) -> refresh (the metric, when it is due) -> step (rule, bounds) -> growth
"""

from __future__ import annotations

import inspect
import math
import threading
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypedDict

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pathsgd.distributed.sharded import reshard
from pathsgd.metric.bounds import DualNorm
from pathsgd.metric.choice import MetricChoice
from pathsgd.metric.geometry import Measure
from pathsgd.network.record.model import original
from pathsgd.network.record.record import Output
from pathsgd.optim import device, step
from pathsgd.optim.growth import bound_parts_
from pathsgd.optim.last_inputs import LastInputs
from pathsgd.optim.plan import Bound, Part, Parts, Plan, has_shards
from pathsgd.optim.refresh import Refresh
from pathsgd.optim.rules import Rule
from pathsgd.optim.state import Codec, ParameterState
from pathsgd.optim.step import Outcome, Unread
from pathsgd.paths.kappa import Terms


class Options(TypedDict, total=False):
    """The options that every path optimiser takes beside those of its rule."""

    terms: Terms
    clip: Bound | DualNorm
    growth: Bound
    refresh_every: int
    capturable: bool
    params: Any
    example_inputs: Any
    output: Output


class PathOptimizer(Optimizer):
    """An optimiser in a model's path geometry; subclasses specify a rule and its defaults."""

    kept: ClassVar[tuple[str, ...]] = (
        "plan", "capturable", "log_gamma_sq", "_dual_norm", "growth_rates", "_refresh", "_last",
    )  # fmt: skip
    """What a copy or a pickle keeps beside torch's own."""
    counts_from_start: ClassVar[bool] = False
    """Whether the paper's kappa is counted in units of gamma^2 at the first step."""

    def __init__(
        self,
        model: nn.Module,
        rule: Rule,
        defaults: dict[str, Any],
        metric: MetricChoice,
        *,
        terms: Terms = "first",
        clip: Bound | DualNorm = "auto",
        growth: Bound = "auto",
        refresh_every: int = 1,
        capturable: bool = False,
        params: Any = None,
        example_inputs: Any = None,
        output: Output = None,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(
                "the first argument is the model itself (a torch.nn.Module), not "
                f"{type(model).__name__}: the metric needs its structure; choose parameters with "
                "params="
            )
        self.plan = Plan.of(
            metric, rule, terms, clip, growth, refresh_every, capturable, self.counts_from_start
        )
        self.capturable = capturable
        self.log_gamma_sq = math.nan
        """log gamma^2 when the metric was last measured."""
        self._dual_norm: float | Unread = math.nan
        self.growth_rates: dict[str, Tensor] = {}
        """Growth rates of the recurrent matrices after the last step, before they were bounded."""
        self._refresh = Refresh(original(model), output, self.plan)
        self._begin()
        super().__init__(list(self.model.parameters()) if params is None else params, defaults)
        self._last = LastInputs(self.model, example_inputs)
        self._last.belong_to(self)
        self._last.watch(model)

    def __init_subclass__(cls) -> None:
        """Show the options that `**options` stands for in the signature."""
        super().__init_subclass__()
        own, options = (
            list(inspect.signature(c.__init__).parameters.values())[1:]
            for c in (cls, PathOptimizer)
        )
        shared = [option for option in options if option.name in Options.__annotations__]
        named = [option for option in own if option.kind is not inspect.Parameter.VAR_KEYWORD]
        if len(named) < len(own):
            cls.__signature__ = inspect.Signature([*named, *shared])  # type: ignore[attr-defined]

    def _begin(self) -> None:
        """Make what no copy shares and no pickle holds."""
        self._skips, self._alone = device.Skips(), Alone(type(self).__name__)
        self._codec = Codec(self.plan.rule, self.plan.metric.rho not in (0.0, 1.0))
        self._forget_layout()

    def _forget_layout(self) -> None:
        names = {id(p): n for n, p in self.model.named_parameters()}
        self._parts = Parts(names, self.plan.rule, self._codec.new, self._skips.close_counts)
        self._is_sharded = has_shards(self.model)
        self._refresh.forget()

    @property
    def model(self) -> nn.Module:
        """The network this optimiser trains."""
        return self._refresh.geometry.model

    @property
    def dual_norm(self) -> float:
        """Length of the last gradient in the dual metric, before clipping; nan where clip is None.

        On a GPU reading it synchronises the device.
        """
        if isinstance(self._dual_norm, Unread):
            self._dual_norm = self._dual_norm.read()
        return self._dual_norm

    def carry(self, p: Tensor, c: Tensor, alpha: Tensor) -> None:
        """Make the state follow p -> c p (paths/carry.py). alpha: factors of the units entered."""
        if p in self.state:
            # Moments of whitened gradients do not change; the paper's are those of grad / kappa.
            powers = {} if self.plan.whitens else self.plan.rule.powers
            self.state[p].rescale(c, alpha, powers)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters of the model, as in torch.optim."""
        self._parts.share_states()
        super().add_param_group(param_group)
        self._forget_layout()
        try:
            self._check(self.param_groups[-1])
        except (TypeError, ValueError):
            self.param_groups.pop()
            raise

    def _check(self, group: dict[str, Any]) -> None:
        names = self._parts.names
        for p in group["params"]:
            if id(p) not in names:
                raise ValueError(
                    f"a parameter of shape {tuple(p.shape)} does not belong to the model"
                )
            if p.is_complex():
                raise TypeError(
                    f"parameter '{names[id(p)]}' is complex; path geometry needs real parameters"
                )
        if isinstance(group["lr"], Tensor) and group["lr"].numel() != 1:
            raise ValueError(f"Tensor lr must be 1-element, got shape {tuple(group['lr'].shape)}")
        for key in ("lr", "weight_decay"):
            if not 0 <= float(group[key]) < math.inf:
                raise ValueError(f"{key} must be finite and not negative, got {group[key]}")
        self.plan.rule.check(group)

    def __getstate__(self) -> dict[str, Any]:
        self._settle()
        return {**super().__getstate__(), **{name: getattr(self, name) for name in self.kept}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Called for copies and unpickled optimisers, and by load_state_dict with a part of it."""
        super().__setstate__(state)
        self._begin()
        if "_last" in state:
            self._last.belong_to(self)

    def _settle(self) -> None:
        """Read what only the device knows, or another process."""
        self._parts.share_states()
        self._skips.settle()
        self._skips.settle_counts()
        _ = self.dual_norm

    def inputs(self) -> tuple[Any, ...]:
        """Inputs of the shapes the metric is measured for."""
        return self._last.get().args

    def measure(self) -> Measure:
        """The geometry at the current weights, for the shapes of the last forward pass."""
        return self._refresh.measure(self._last)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """One update; with a closure, the gradients are those it leaves behind."""
        with self._alone:
            loss = None
            if closure is not None:
                with torch.enable_grad():
                    loss = closure()
            if self._is_sharded:
                reshard(self.model)
            is_new = not self.state
            parts = self.parts_with_gradients()
            if not parts or (is_new and self._is_only_laying_out(parts)):
                return loss
            if self.capturable and not self._runs_on_device():
                places = ", ".join(sorted({str(part.params[0].device) for part in parts}))
                raise ValueError(
                    "capturable=True: a step can be captured where all parameters are on one GPU "
                    f"(or other accelerator) and kernels have the rule, not on {places}; leave "
                    "capturable out"
                )
            self.advance(parts, self.keep_up(parts))
            return loss

    def parts_with_gradients(self) -> list[Part]:
        """The parameters that a step would move."""
        return self._parts.with_gradients(self.param_groups, self.state)

    def _runs_on_device(self) -> bool:
        return self._parts.is_on_device and type(self.plan.rule).fused is not Rule.fused

    def keep_up(self, parts: list[Part]) -> Measure | None:
        """Measure the metric again if it is due; None if it serves on."""
        unread = self._skips.unread
        measured = self._refresh.keep_up(
            parts, self._last, self.param_groups[0], unread, on_device=self._parts.is_on_device
        )
        if measured is not None:
            self.log_gamma_sq = measured.log_gamma_sq
            if unread:
                self._skips.settle(measured.also)
        return measured

    def advance(self, parts: list[Part], measured: Measure | None) -> None:
        """Move these parts by their gradients; measured: what `keep_up` found."""
        rows = self._refresh.scale_free_rows(parts, self._last)
        on_device = self._runs_on_device()
        outcome = self._moved(parts, on_device=on_device)
        if rows is not None:
            rows.keep_lengths()
        if outcome.dual_norm is not None:
            self._dual_norm = outcome.dual_norm
        # On a device it takes hundreds of small operations, so rates are bounded with the metric.
        is_due = measured is not None or not on_device
        if self.plan.growth is not None and outcome.moved and is_due:
            found = self._refresh.recurrences(self._last)
            if found:
                self.growth_rates = bound_parts_(
                    parts, found, self.plan.growth, is_measured=measured is not None
                )
        if not on_device:
            self._refresh.release(parts)

    def _moved(self, parts: list[Part], *, on_device: bool) -> Outcome:
        constant = self._constant(parts)
        if on_device:
            return device.move(parts, self.plan, constant, self._skips)
        return step.move(parts, self.plan, constant)

    def _constant(self, parts: list[Part]) -> float:
        """What every direction is multiplied by."""
        return 1.0

    def state_dict(self) -> dict[str, Any]:
        """As in torch.optim, numbers and contiguous tensors; on a GPU the host waits for it.

        Of a sharded model, every process must call it: matrices' owners send what they remember.
        """
        self._settle()
        kept = self.state
        if kept:
            self.state = {  # type: ignore[assignment]
                p: self._codec.entries(kept.get(p) or self._codec.new(p, group), p)
                for group in self.param_groups
                for p in group["params"]
                if p.requires_grad
            }
        try:
            return super().state_dict()
        finally:
            self.state = kept

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As in torch.optim; the state of another model is refused before anything changes."""
        found: dict[Tensor, ParameterState] = {}
        names = self._parts.names
        for saved, group in zip(state_dict["param_groups"], self.param_groups):
            for index, p in zip(saved["params"], group["params"]):
                entries = state_dict["state"].get(index)
                if entries:
                    self._codec.refuse_unfit(entries, names[id(p)], p)
                    found[p] = self._codec.read(entries, p, {**group, **saved})
        super().load_state_dict({**state_dict, "state": {}})
        self.state.update(found)

    def _is_only_laying_out(self, parts: Sequence[Part]) -> bool:
        """Whether only a new optimiser's states are wanted.

        torch.distributed.checkpoint asks so: a step with rates of 0 and gradients of 0.
        """
        return all(float(group["lr"]) == 0 for group in self.param_groups) and not any(
            bool(gradient.any()) for part in parts for gradient in part.gradients()
        )


class Alone:
    """Refuses a second thread inside: the memory of a step is that of one thread."""

    def __init__(self, name: str) -> None:
        self._name, self._lock = name, threading.Lock()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise RuntimeError(
                f"{self._name}.step() was called while another call of it runs: step one optimiser "
                "from one thread at a time"
            )

    def __exit__(self, *exception: object) -> None:
        self._lock.release()
