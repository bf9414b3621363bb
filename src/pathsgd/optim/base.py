"""What both path optimisers share: the model, its input shapes, the metric and when it is measured again."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pathsgd._native.update import Update
from pathsgd._native.update_fallback import GRADIENT, Rule
from pathsgd.absolute import log_sizes, resized
from pathsgd.kappa import Terms
from pathsgd.measure import Geometry, Measure
from pathsgd.nodes import NodeSpaces
from pathsgd.normalize import balancing_ratios, clip_factor, refuse_sparse, spectral_norm, whitenings
from pathsgd.optim.inputs import LastInputs, as_inputs
from pathsgd.optim.together import Together, put_together
from pathsgd.recording import Output

# What a copy or a pickle of an optimiser keeps beside torch's own.
_KEPT = (
    "terms", "clip", "growth", "refresh_every", "relative", "absolute", "log_gamma_sq", "dual_norm", "step_growth",
    "_geometry", "_example", "_last",
)  # fmt: skip


class PathOptimizer(Optimizer):
    """An optimiser that steps in a model's path geometry.

    Subclasses compute a step from whitened gradients; this class knows when and how to measure. Each parameter's
    state holds `whitening`, 1/sqrt(K), and `age`, the steps it has served: a resumed run continues bit for bit, also
    between two measurements.
    """

    alike: ClassVar[tuple[str, ...]] = ()
    """States that must be equal for parameters to be updated together."""

    def __init__(
        self,
        model: nn.Module,
        params: Any,
        defaults: dict[str, Any],
        *,
        terms: Terms,
        clip: float | None,
        growth: float | None,
        refresh_every: int,
        example_inputs: Any,
        output: Output,
        relative: bool,
        absolute: bool = False,
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
        if growth is not None and not growth > 0:
            raise ValueError(f"growth must be positive or None, got {growth}")
        if refresh_every < 1:
            raise ValueError(f"refresh_every must be at least 1, got {refresh_every}")
        self.terms, self.clip, self.refresh_every = terms, clip, int(refresh_every)
        self.relative, self.absolute = relative, absolute
        # Growth is measured in balanced coordinates, which only the relative metric knows.
        self.growth = growth if relative else None
        self.log_gamma_sq = math.nan
        """log gamma^2 when the metric was last measured."""
        self.dual_norm = math.nan
        """Length of the last gradient in the dual metric, before clipping; not computed where clip is None."""
        self.step_growth = math.nan
        """Growth of the last step before it was bounded, or more than that where more is allowed; not computed where
        growth is None."""
        self._geometry = Geometry(model, output)
        self._example = None if example_inputs is None else as_inputs(example_inputs)
        self._forget_layout()
        super().__init__(list(model.parameters()) if params is None else params, defaults)
        self._last = LastInputs()
        self._last.belong_to(self)
        if self._example is None:
            self._last.watch(model)

    @property
    def model(self) -> nn.Module:
        return self._geometry.model

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        self._names = {id(p): n for n, p in self.model.named_parameters()}
        try:
            self._check(self.param_groups[-1])
        except (TypeError, ValueError):
            self.param_groups.pop()
            raise
        self._forget_layout()

    def _check(self, group: dict[str, Any]) -> None:
        for p in group["params"]:
            if id(p) not in self._names:
                raise ValueError(f"a parameter of shape {tuple(p.shape)} does not belong to the model")
            if p.is_complex():
                raise TypeError(f"parameter '{self._names[id(p)]}' is complex; path geometry needs real parameters")
        if group.get("differentiable"):
            raise ValueError("differentiable=True: a path step cannot be differentiated, its metric has no graph")
        if isinstance(group["lr"], Tensor) and group["lr"].numel() != 1:
            raise ValueError(f"Tensor lr must be 1-element, got shape {tuple(group['lr'].shape)}")
        for key in ("lr", "weight_decay", "rho"):
            if not float(group[key]) >= 0:
                raise ValueError(f"{key} must not be negative, got {group[key]}")
        if group["rho"] and not self.relative:
            raise ValueError("the paper's kappa has rho = 0; rho needs the metric relative to gamma^2 (relative=True)")

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), **{name: getattr(self, name) for name in _KEPT}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Called for copies and unpickled optimisers, and by load_state_dict with a part of the state."""
        super().__setstate__(state)
        self._forget_layout()
        for kept in self.state.values():
            if "whitening" in kept:  # it may still be another optimiser's, which writes over it
                kept["whitening"] = kept["whitening"].clone()
        if "_geometry" in state:
            self._names = {id(p): n for n, p in self.model.named_parameters()}
            self._last.belong_to(self)

    def inputs(self) -> tuple[Any, ...]:
        """Inputs of the shapes the metric is measured for."""
        return self._last.get() if self._example is None else self._example

    def measure(self, root: float | None = None, parameters: Mapping[str, Tensor] | None = None) -> Measure:
        """The geometry at the current weights, for the shapes of the last forward pass, as exact as a step needs it."""
        with torch.enable_grad():  # kappa is a derivative; step() itself runs without
            return self._geometry.measure(self.inputs(), self.terms, exact=False, root=root, parameters=parameters)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """One update; with a closure, the gradients are those it leaves behind."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        parts = self._with_gradients()
        if parts:
            self._refresh(parts)
            self._move([Move(part, part.update(self._moment_names(part.group))) for part in parts])
        return loss

    def _move(self, moves: Sequence[Move]) -> None:
        if self.clip is not None or self.growth is not None:
            for move in moves:
                move.squares = move.update.square_sums()
        factor = self._clip_factor(moves)
        if factor == 0:
            return
        for move in moves:
            group = move.part.group
            move.rule, move.alpha = self._rule(move.part, -factor if group["maximize"] else factor)
            if self._moment_names(group):
                move.update.moments(move.rule)
        bound = self._growth_factor(moves)
        for move in moves:
            keep = 1 - float(move.part.group["lr"]) * move.part.group["weight_decay"]
            move.update.apply(move.rule, move.alpha * bound, keep)

    def _moment_names(self, group: dict[str, Any]) -> tuple[str, ...]:
        """The states that hold the first and second moments of a group's gradients, if its rule has any."""
        raise AssertionError("subclasses say which")

    def _rule(self, part: Together, factor: float) -> tuple[Rule, float]:
        """How the parameters move, from `factor` times their whitened gradients, and the multiplier of that."""
        raise AssertionError("subclasses define the rule")

    # ---- which parameters, laid out how -----------------------------------------------------------------------

    def _forget_layout(self) -> None:
        self._present: list[list[bool]] = []
        self._parts: list[Together] = []
        self._whitenings: dict[Any, dict[str, Tensor]] = {}  # of the last measurement, for every rho and unit
        self._spaces: NodeSpaces | None = None  # of the last measurement: what no path uses is said once for each

    def _with_gradients(self) -> list[Together]:
        """The parameters that have gradients; put together anew when those are others than in the last step."""
        present = [[p.grad is not None for p in group["params"]] for group in self.param_groups]
        if present != self._present or any(self.state.get(f.params[0]) is not f.states[0] for f in self._parts):
            groups = self.param_groups
            self._parts = [f for group in groups for f in put_together(group, self._names, self.state, self.alike)]
            self._present = present
        return self._parts

    # ---- how far a step may go --------------------------------------------------------------------------------

    def _clip_factor(self, moves: Sequence[Move]) -> float:
        """What clipping leaves of the gradients; 0 to skip the step."""
        if self.clip is None:
            return 1.0
        self.dual_norm = math.sqrt(sum(square for move in moves for square in move.squares))
        return clip_factor(self.dual_norm, self.clip)

    def _growth_factor(self, moves: Sequence[Move]) -> float:
        """The factor that keeps uses * |D|_2 of every repeated matrix below `growth`, D the step when balanced.

        A matrix that paths use T times turns a step D into a factor of up to (1 + |D|_2)^T on signals and gradients:
        the one way in which a small step of a recurrent net explodes, and one that gamma^2 cannot see, because it
        squares every weight and so ignores that the entries of D pull together.
        """
        if self.growth is None:
            return 1.0
        self.step_growth = 0.0
        for move in moves:
            for index, state in enumerate(move.part.states):
                if "repeats" not in state:
                    continue
                uses = abs(move.alpha) * state["repeats"]
                if move.rule.direction == GRADIENT and "growth_ratio" not in state:
                    # Balanced, the step of a plain gradient is u: |u|_2 <= |u|_F, which clipping knows already.
                    most = math.sqrt(move.squares[index]) * uses
                    if most <= self.growth:
                        state.pop("growth_direction", None)  # would be out of date when it is needed
                        self.step_growth = max(self.step_growth, most)
                        continue
                self.step_growth = max(self.step_growth, _balanced_length(move, index) * uses)
        return min(1.0, self.growth / self.step_growth) if self.step_growth > 0 else 1.0

    # ---- the metric -------------------------------------------------------------------------------------------

    def _refresh(self, parts: Sequence[Together]) -> None:
        """Measure again when it is time, or when a parameter has no metric yet."""
        oldest = max(state.get("age", self.refresh_every) for part in parts for state in part.states)
        if oldest >= self.refresh_every:
            for part in parts:
                refuse_sparse(part.names, part.gradients())
            parameters = self._geometry.parameters()
            measured = self.measure(parts[0].states[0].get("root"), parameters)
            self.log_gamma_sq = measured.log_gamma_sq
            found: dict[Any, dict[str, Tensor]] = {}
            for part in parts:
                rho, log_unit = part.group["rho"], self._log_unit(part.group, measured)
                if (rho, log_unit) not in found:
                    whitened = whitenings(
                        measured, parameters, rho, relative=self.relative, log_unit=log_unit,
                        last=self._whitenings.get((rho, log_unit)),
                    )  # fmt: skip
                    if self.absolute:
                        whitened = resized(whitened, self._log_sizes(parts, whitened, measured, parameters))
                    found[rho, log_unit] = whitened
                self._set_metric(part, found[rho, log_unit], measured, parameters)
            self._spaces, self._whitenings = measured.spaces, found
        for part in parts:
            for state in part.states:
                state["age"] += 1

    def _log_sizes(
        self,
        parts: Sequence[Together],
        whitened: Mapping[str, Tensor],
        measured: Measure,
        parameters: Mapping[str, Tensor],
    ) -> dict[str, float]:
        """The sizes that the metric of each parameter keeps from its first measurement."""
        states = {
            name: state
            for part in parts
            for name, state in zip(part.names, part.states)
            if name in measured.kappa and measured.is_free(name)
        }
        if measured.log_gamma_sq > -math.inf and not all("log_size" in state for state in states.values()):
            for name, size in log_sizes(whitened, measured, parameters).items():
                if name in states:
                    states[name].setdefault("log_size", size)
        return {name: state["log_size"] for name, state in states.items() if "log_size" in state}

    def _log_unit(self, group: dict[str, Any], measured: Measure) -> float | None:
        """log of what kappa is counted in, in place of gamma^2 itself."""
        return None

    def _set_metric(
        self, part: Together, found: dict[str, Tensor], measured: Measure, parameters: Mapping[str, Tensor]
    ) -> None:
        ratios: dict[str, Tensor | None] = {}
        if self.growth is not None and measured.repeats:
            ratios = balancing_ratios(measured, parameters, part.group["rho"], measured.repeats)
        for name, p, state in zip(part.names, part.params, part.states):
            # A part that the last forward pass left out (another head, say) keeps the metric it has.
            if name in measured.kappa or "age" not in state:
                whitening, known = found[name], state.get("whitening")
                if known is None or known.data_ptr() != whitening.data_ptr():  # else it was written over in place
                    state["whitening"] = whitening.expand(p.shape)
                if self._spaces is not measured.spaces and not bool(found[name].any()) and bool(p.grad.any()):  # type: ignore[union-attr]
                    _warn_of_no_path(name)
            if name in ratios:
                state["repeats"] = measured.repeats[name]
                state.pop("growth_ratio", None)
                if (ratio := ratios[name]) is not None:
                    if self.absolute:  # a recurrent matrix: both metrics have mean 1
                        ratio = ratio / ratio.log().mean().exp()
                    state["growth_ratio"] = ratio.to(p)
            state["age"] = 0
            if measured.next_root is not None:
                state["root"] = measured.next_root  # kept here, because a resumed run must start from the same one


@dataclass
class Move:
    """One step of some parameters while it is computed."""

    part: Together
    update: Update
    squares: list[float] = field(default_factory=list)
    """Squared lengths of the whitened gradients."""
    rule: Rule = field(default_factory=lambda: Rule(GRADIENT))
    alpha: float = 0.0


def _balanced_length(move: Move, index: int) -> float:
    """|D|_2 of one parameter in balanced coordinates, up to `alpha`."""
    direction, state = move.update.direction(move.rule, index), move.part.states[index]
    if "growth_ratio" in state:
        direction = direction * state["growth_ratio"]
    step = direction.reshape(direction.shape[0], -1)
    start, iterations = state.get("growth_direction"), 2
    if start is None:
        start, iterations = _generic_vector(step), 18  # from nowhere it takes longer to find the dominant direction
    length, start = spectral_norm(step, start, iterations)
    if length > 0:  # a zero vector would never turn again
        state["growth_direction"] = start
    return length


def _generic_vector(like: Tensor) -> Tensor:
    """A vector with no symmetry, the same for every model: a start for power iteration."""
    return torch.arange(1, like.shape[1] + 1, dtype=like.dtype, device=like.device).cos()


def _warn_of_no_path(name: str) -> None:
    warnings.warn(
        f"parameter '{name}' has a gradient, but no path to the measured output uses it, so it is not moved; "
        "if the loss reads other results of the model, choose them with output=",
        RuntimeWarning,
        stacklevel=2,
    )
