"""What both path optimisers share: the contract of torch.optim, the state, and the one order in which a step goes.

parts (who has a gradient) -> refresh (the metric, when it is time) -> motion (the subclass's rule) -> moves
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pathsgd.distributed.sharded import reshard
from pathsgd.distributed.spread import is_sharded
from pathsgd.metric.bounds import DualNorm, bound_of
from pathsgd.metric.choice import MetricChoice, PaperMetric, chosen
from pathsgd.metric.geometry import Measure
from pathsgd.network.record.model import original
from pathsgd.network.record.record import Output
from pathsgd.optim import growth as growth_bound
from pathsgd.optim import on_device
from pathsgd.optim.last_inputs import LastInputs
from pathsgd.optim.loading import (
    beginning,
    keep_own_parts,
    keep_precision,
    opened,
    packed,
    refuse_other_model,
)
from pathsgd.optim.moves import Move, Unread, move
from pathsgd.optim.on_device import Skips
from pathsgd.optim.parts import Part, Parts
from pathsgd.optim.refresh import Refresh
from pathsgd.optim.step_bound import StepLimit
from pathsgd.paths.kappa import Terms

Bound = float | Literal["auto"] | None
"""A bound, None for no bound, "auto" for the default of the metric."""
CLIP = 1.0
"""Default bound on the dual norm of the gradient."""


class PathOptimizer(Optimizer):
    """An optimiser that steps in a model's path geometry; subclasses make a step of whitened gradients."""

    kept: ClassVar[tuple[str, ...]] = (
        "clip", "growth", "capturable", "log_gamma_sq", "_dual_norm", "_step_growth", "step_limit", "growth_rates",
        "_refresh", "_last",
    )  # fmt: skip
    """What a copy or a pickle keeps beside torch's own."""
    alike: ClassVar[tuple[str, ...]] = ()
    """States that must be equal for parameters to be updated together."""
    counts_from_start: ClassVar[bool] = False
    """Whether the paper's kappa is counted in units of gamma^2 at the first step."""

    def __init__(
        self,
        model: nn.Module,
        params: Any,
        defaults: dict[str, Any],
        *,
        metric: MetricChoice,
        terms: Terms,
        clip: Bound | DualNorm,
        growth: Bound,
        refresh_every: int,
        capturable: bool,
        example_inputs: Any,
        output: Output,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(
                f"the first argument is the model itself (a torch.nn.Module), not {type(model).__name__}: "
                "the metric needs its structure; choose parameters with params="
            )
        if terms not in ("first", "both"):
            raise ValueError(f"terms must be 'first' or 'both', got {terms!r}")
        if not 1 <= refresh_every < math.inf:
            raise ValueError(
                f"refresh_every must be a number of steps, at least 1, got {refresh_every}"
            )
        metric = chosen(metric)
        is_paper = isinstance(metric, PaperMetric)
        if clip == "auto":
            clip = None if is_paper else CLIP
        self.clip = bound_of(clip, metric)  # type: ignore[arg-type]  # "auto" is gone
        self.growth = _checked("growth", growth, None if is_paper else growth_bound.LIMIT)
        self.capturable = capturable
        self.log_gamma_sq = math.nan
        """log gamma^2 when the metric was last measured."""
        self._dual_norm: float | Unread = math.nan
        self._step_growth: float | Unread = math.nan
        self._skips = Skips()
        self.step_limit: StepLimit = None if self.growth is None or is_paper else "room"
        """Bound on the growth of a step: what the growth rates leave room for, a number for every step, or None."""
        self.growth_rates: dict[str, Tensor] = {}
        """Growth rates of the recurrent matrices after the last step, before they were bounded; 0-d, by name."""
        self._refresh = Refresh(
            original(model), output, metric, terms, int(refresh_every),
            counts_from_start=self.counts_from_start,
        )  # fmt: skip
        self._forget_layout()
        super().__init__(list(self.model.parameters()) if params is None else params, defaults)
        self._last = LastInputs(self.model, example_inputs)
        self._last.belong_to(self)
        self._last.watch(model)

    @property
    def model(self) -> nn.Module:
        """The network this optimiser trains."""
        return self._refresh.geometry.model

    @property
    def dual_norm(self) -> float:
        """Length of the last gradient in the dual metric, before clipping; not computed where clip is None.

        On a GPU it is read when somebody looks, who then waits for the step.
        """
        if isinstance(self._dual_norm, Unread):
            self._dual_norm = self._dual_norm.read()
        return self._dual_norm

    @property
    def step_growth(self) -> float:
        """Growth of the last step before it was bounded, or an upper bound of it where that satisfies the limit.

        Not computed where growth is None. On a GPU it is read when somebody looks.
        """
        if isinstance(self._step_growth, Unread):
            self._step_growth = self._step_growth.read()
        return self._step_growth

    @property
    def state_powers(self) -> dict[str, int]:
        """The power of c that each tensor of the state is multiplied by when p becomes c p (paths/carry.py).

        Moments of whitened gradients do not change.
        """
        return {"whitening": 1, "momentum_buffer": 0, "exp_avg": 0, "exp_avg_sq": 0}

    @property
    def metric(self) -> Any:
        """What K is: a `pathsgd.Metric`, or the paper's."""
        return self._refresh.metric

    @property
    def terms(self) -> Terms:
        """Which terms of kappa the metric has."""
        return self._refresh.terms

    @property
    def refresh_every(self) -> int:
        """Steps for which a measured metric serves."""
        return self._refresh.every

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters of the model, as in torch.optim."""
        super().add_param_group(param_group)
        self._names = {id(p): n for n, p in self.model.named_parameters()}
        self._is_sharded = any(is_sharded(p) for p in self.model.parameters())
        try:
            self._check(self.param_groups[-1])
        except (TypeError, ValueError):
            self.param_groups.pop()
            raise
        self._forget_layout()

    def _check(self, group: dict[str, Any]) -> None:
        for p in group["params"]:
            if id(p) not in self._names:
                raise ValueError(
                    f"a parameter of shape {tuple(p.shape)} does not belong to the model"
                )
            if p.is_complex():
                raise TypeError(
                    f"parameter '{self._names[id(p)]}' is complex; path geometry needs real parameters"
                )
        if isinstance(group["lr"], Tensor) and group["lr"].numel() != 1:
            raise ValueError(f"Tensor lr must be 1-element, got shape {tuple(group['lr'].shape)}")
        for key in ("lr", "weight_decay"):
            if not 0 <= float(group[key]) < math.inf:
                raise ValueError(f"{key} must be finite and not negative, got {group[key]}")

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As in torch.optim; the state of a model of other shapes is refused before anything changes."""
        state_dict = opened(state_dict)
        refuse_other_model(state_dict, self.param_groups, self._names)
        super().load_state_dict(state_dict)
        keep_precision(state_dict, self.param_groups, self.state)
        for p, state in self.state.items():
            keep_own_parts(state, p)

    def __getstate__(self) -> dict[str, Any]:
        self._skips.settle()
        self._skips.settle_counts()
        _ = self.dual_norm, self.step_growth  # read, so that a copy holds numbers
        return {**super().__getstate__(), **{name: getattr(self, name) for name in self.kept}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Called for copies and unpickled optimisers, and by load_state_dict with a part of the state."""
        super().__setstate__(state)
        self._skips = Skips()
        self._forget_layout()
        for kept in self.state.values():
            for key in {"whitening", "whitening_columns"} & kept.keys():
                kept[key] = _own(
                    kept[key]
                )  # it may still be another optimiser's, which writes over it
        if "_refresh" in state:
            self._names = {id(p): n for n, p in self.model.named_parameters()}
            self._is_sharded = any(is_sharded(p) for p in self.model.parameters())
            self._last.belong_to(self)

    def _forget_layout(self) -> None:
        self._parts = Parts(self.alike, self._skips.close_counts)
        self._refresh.forget()

    def inputs(self) -> tuple[Any, ...]:
        """Inputs of the shapes the metric is measured for."""
        return self._last.get().args

    def measure(self) -> Measure:
        """The geometry at the current weights, for the shapes of the last forward pass, as exact as a step needs it."""
        return self._refresh.measure(self._last)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """One update; with a closure, the gradients are those it leaves behind."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self._is_sharded:
            reshard(self.model)
        is_new = not self.state
        parts = self.parts_with_gradients()
        if not parts:
            return loss
        if is_new and self._is_only_laying_out(parts):
            for part in parts:
                for p, state in zip(part.owners, part.states):
                    state.update(self._beginning(p, part.group))
            return loss
        if self.capturable and not _is_elsewhere(parts):
            raise ValueError(
                "capturable=True: a step can be captured where all parameters are on one GPU (or other accelerator), "
                f"not on {', '.join(sorted({str(part.params[0].device) for part in parts}))}; leave capturable out"
            )
        self.advance(parts, self.keep_up(parts))
        return loss

    def parts_with_gradients(self) -> list[Part]:
        """The parameters that a step would move."""
        return self._parts.with_gradients(self.param_groups, self._names, self.state)

    def keep_up(self, parts: list[Part]) -> Measure | None:
        """Measure the metric again if it is time; None if it serves on."""
        measured = self._refresh.keep_up(
            parts,
            self._last,
            self.param_groups[0],
            self._skips.unread,
            bounds_steps=self.step_limit is not None,
        )
        if measured is not None:
            self.log_gamma_sq = measured.log_gamma_sq
            self._skips.settle(measured.also)
        return measured

    def advance(self, parts: list[Part], measured: Measure | None) -> None:
        """Move these parts by their gradients; measured: what `keep_up` found."""
        is_elsewhere = _is_elsewhere(parts)
        constant = self._constant(parts)
        moves = [self._motion(part, constant) for part in parts]
        rows = self._refresh.scale_free_rows(parts, self._last)
        lengths = (on_device.move if is_elsewhere else move)(
            moves, self.clip, self.step_limit, constant
        )
        rows.keep_lengths()
        if self.capturable:
            for m in moves:
                self._skips.count_there(m)
        elif lengths.finite is not None:
            self._skips.add(
                lengths.finite, [state for m in moves if m.counts_steps for state in m.part.states]
            )
        self._dual_norm = self._dual_norm if lengths.dual_norm is None else lengths.dual_norm
        self._step_growth = self._step_growth if lengths.growth is None else lengths.growth
        # Elsewhere it takes hundreds of small operations, so the rates are looked at together with the metric.
        is_due = measured is not None or not is_elsewhere
        if self.growth is not None and lengths.moved and is_due:
            self.growth_rates = growth_bound.bound_parts_(
                parts,
                self._refresh.recurrences(self._last),
                self.growth,
                is_measured=measured is not None,
            )
        if not is_elsewhere:
            self._refresh.let_go(parts)

    def state_dict(self) -> dict[str, Any]:
        """As in torch.optim; on a GPU the host waits for the last steps."""
        self._skips.settle()
        self._skips.settle_counts()
        result = super().state_dict()
        if self.state:
            owners = [(p, group) for group in self.param_groups for p in group["params"]]
            states = {
                i: self.state.get(p) or self._beginning(p, group)
                for i, (p, group) in enumerate(owners)
            }
            result["state"] = {
                i: packed(state, owners[i][0]) for i, state in states.items() if state
            }
        return result

    def _beginning(self, p: Tensor, group: dict[str, Any]) -> dict[str, Any]:
        """The state of a parameter before its first step; of a frozen one there is none."""
        return (
            beginning(p, self._moment_names(group), self.refresh_every) if p.requires_grad else {}
        )

    def _is_only_laying_out(self, parts: Sequence[Part]) -> bool:
        """Whether nothing but a new optimiser's states is wanted.

        torch.distributed.checkpoint asks so for what it is to load: a step with rates of 0 and gradients of 0.
        """
        return all(float(group["lr"]) == 0 for group in self.param_groups) and not any(
            bool(gradient.any()) for part in parts for gradient in part.gradients()
        )

    def _constant(self, parts: Sequence[Part]) -> float:
        """What every direction is multiplied by."""
        return 1.0

    def _moment_names(self, group: dict[str, Any]) -> tuple[str, ...]:
        """The states that hold moments, under the settings of a group."""
        raise AssertionError("subclasses define the rule")

    def _motion(self, part: Part, constant: float) -> Move:
        """How the parameters of a part move, made of their whitened gradients."""
        raise AssertionError("subclasses define the rule")


def rate_of(group: dict[str, Any], *, capturable: bool) -> tuple[float, Tensor | None]:
    """The learning rate of a group as a number, or 1 and a tensor that is not to be read."""
    if capturable and isinstance(group["lr"], Tensor):
        return 1.0, group["lr"]
    return float(group["lr"]), None


def _own(whitening: Tensor) -> Tensor:
    """A copy that is as little expanded as the original."""
    kept = [slice(None) if stride else slice(1) for stride in whitening.stride()]
    return whitening[tuple(kept)].clone().expand(whitening.shape)


def _is_elsewhere(parts: Sequence[Part]) -> bool:
    """Whether a step can run on another device without waiting: nothing has to go from one device to another."""
    return not parts[0].params[0].is_cpu and len({part.params[0].device for part in parts}) == 1


def _checked(name: str, value: Bound, default: float | None) -> float | None:
    if value == "auto":
        return default
    if value is None:
        return None
    if isinstance(value, str) or not 0 < value < math.inf:
        raise ValueError(f"{name} must be positive and finite, None or 'auto', got {value!r}")
    return float(value)
