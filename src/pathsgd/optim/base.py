"""What both path optimisers share: the model, its input shapes, the metric and when it is measured again."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pathsgd.kappa import Terms
from pathsgd.measure import Geometry, Measure
from pathsgd.normalize import clip_factor, inverse_metric, metric, refuse_sparse, spectral_norm
from pathsgd.optim.flat import Flat, laid_out, norm
from pathsgd.optim.inputs import LastInputs, as_inputs
from pathsgd.recording import Output

# What a copy or a pickle of an optimiser keeps beside torch's own.
_KEPT = (
    "terms", "clip", "growth", "refresh_every", "relative", "log_gamma_sq", "dual_norm", "step_growth", "_geometry",
    "_example", "_last",
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
        self.terms, self.clip, self.refresh_every, self.relative = terms, clip, int(refresh_every), relative
        # Growth is measured in balanced coordinates, which only the relative metric knows.
        self.growth = growth if relative else None
        self.log_gamma_sq = math.nan
        """log gamma^2 when the metric was last measured."""
        self.dual_norm = math.nan
        """Length of the last gradient in the dual metric, before clipping; not computed where clip is None."""
        self.step_growth = math.nan
        """Growth of the last step before it was bounded; not computed where growth is None."""
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
        if "_geometry" in state:
            self._names = {id(p): n for n, p in self.model.named_parameters()}
            self._last.belong_to(self)

    def inputs(self) -> tuple[Any, ...]:
        """Inputs of the shapes the metric is measured for."""
        return self._last.get() if self._example is None else self._example

    def measure(self) -> Measure:
        """The geometry at the current weights, for the shapes of the last forward pass."""
        with torch.enable_grad():  # kappa is a derivative; step() itself runs without
            return self._geometry.measure(self.inputs(), self.terms)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """One update; with a closure, the gradients are those it leaves behind."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        flats = self._with_gradients()
        if flats:
            self._refresh(flats)
            factor = self._whiten(flats)
            if factor is not None:
                moves = [(flat, *self._update(flat, -factor if flat.group["maximize"] else factor)) for flat in flats]
                bound = self._bound_growth(moves)
                for flat, vector, alpha in moves:
                    flat.add_(vector, alpha * bound)
        return loss

    def _update(self, flat: Flat, factor: float) -> tuple[Tensor, float]:
        """The step of the parameters of `flat` as vector and multiplier, from `factor` times the whitened gradients."""
        raise AssertionError("subclasses define the update")

    # ---- which parameters, laid out how -----------------------------------------------------------------------

    def _forget_layout(self) -> None:
        self._present: list[list[bool]] = []
        self._flats: list[Flat] = []

    def _with_gradients(self) -> list[Flat]:
        """The parameters that have gradients; laid out anew when those are others than in the last step."""
        present = [[p.grad is not None for p in group["params"]] for group in self.param_groups]
        if present != self._present or any(self.state.get(f.params[0]) is not f.states[0] for f in self._flats):
            groups = self.param_groups
            self._flats = [f for group in groups for f in laid_out(group, self._names, self.state, self.alike)]
            self._present = present
        return self._flats

    # ---- how far a step may go --------------------------------------------------------------------------------

    def _bound_growth(self, moves: Sequence[tuple[Flat, Tensor, float]]) -> float:
        """The factor that keeps uses * |D|_2 of every repeated matrix below `growth`, D the step when balanced.

        A matrix that paths use T times turns a step D into a factor of up to (1 + |D|_2)^T on signals and gradients:
        the one way in which a small step of a recurrent net explodes, and one that gamma^2 cannot see, because it
        squares every weight and so ignores that the entries of D pull together.
        """
        if self.growth is None:
            return 1.0
        self.step_growth = 0.0
        for flat, vector, alpha in moves:
            repeated = [index for index, state in enumerate(flat.states) if "repeats" in state]
            parts = flat.views(vector) if repeated else []
            for index in repeated:
                part, state = parts[index], flat.states[index]
                step = (part * state["balancing"]).reshape(part.shape[0], -1)
                direction = state.get("growth_direction")
                if direction is None:
                    direction = _generic_vector(step)
                    for _ in range(8):  # from nowhere it takes longer to find the dominant direction
                        _, direction = spectral_norm(step, direction)
                length, direction = spectral_norm(step, direction)
                if length > 0:  # a zero vector would never turn again
                    state["growth_direction"] = direction
                self.step_growth = max(self.step_growth, length * abs(alpha) * state["repeats"])
        return min(1.0, self.growth / self.step_growth) if self.step_growth > 0 else 1.0

    # ---- the metric -------------------------------------------------------------------------------------------

    def _refresh(self, flats: Sequence[Flat]) -> None:
        """Measure again when it is time, or when a parameter has no metric yet."""
        oldest = max(state.get("age", self.refresh_every) for flat in flats for state in flat.states)
        if oldest >= self.refresh_every:
            for flat in flats:
                refuse_sparse(flat.names, flat.gradients())
            measured = self.measure()
            self.log_gamma_sq = measured.log_gamma_sq
            parameters = dict(self.model.named_parameters())
            found: dict[Any, dict[str, Tensor]] = {}
            for flat in flats:
                rho, log_unit = flat.group["rho"], self._log_unit(flat.group, measured)
                if (rho, log_unit) not in found:
                    found[rho, log_unit] = inverse_metric(
                        measured, parameters, rho, relative=self.relative, log_unit=log_unit
                    )
                self._set_metric(flat, found[rho, log_unit], measured)
            self._set_balancing(flats, measured, parameters)
        for flat in flats:
            for state in flat.states:
                state["age"] += 1

    def _log_unit(self, group: dict[str, Any], measured: Measure) -> float | None:
        """log of what kappa is counted in, in place of gamma^2 itself."""
        return None

    def _set_balancing(self, flats: Sequence[Flat], measured: Measure, parameters: Mapping[str, Tensor]) -> None:
        """sqrt(K) at rho = 1 for the matrices that paths use repeatedly: what takes a step to balanced coordinates."""
        repeats = self._geometry.structure(self.inputs()).repeats
        if self.growth is None or not repeats:
            return
        balanced = metric(measured, parameters, rho=1.0, only=repeats)
        for flat in flats:
            for name, p, state in zip(flat.names, flat.params, flat.states):
                if name in balanced:
                    state["balancing"], state["repeats"] = balanced[name].sqrt().to(p), repeats[name]

    def _set_metric(self, flat: Flat, inverses: dict[str, Tensor], measured: Measure) -> None:
        flat.vector("whitening")
        for name, p, state in zip(flat.names, flat.params, flat.states):
            # A part that the last forward pass left out (another head, say) keeps the metric it has.
            if name in measured.kappa or "age" not in state:
                largest = torch.finfo(p.dtype).max  # never inf: inf * 0 is no step
                state["whitening"].copy_(inverses[name].sqrt().clamp(max=largest))
                if not bool(state["whitening"].any()) and bool(p.grad.any()):  # type: ignore[union-attr]
                    _warn_of_no_path(name)
            state["age"] = 0

    def _whiten(self, flats: Sequence[Flat]) -> float | None:
        """u = grad / sqrt(K) in every `flat.whitened`; the factor that clips them, None to skip the step."""
        for flat in flats:
            flat.gather_gradients().mul_(flat.vector("whitening"))
        if self.clip is None:
            return 1.0
        self.dual_norm = norm([flat.whitened for flat in flats])
        return clip_factor(self.dual_norm, self.clip) or None


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
