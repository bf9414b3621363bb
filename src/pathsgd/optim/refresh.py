"""The metric in the parameters' states: measured when it is time, and kept there.

A parameter's state holds `whitening`, 1/sqrt(K), and `age`, the steps it has served: a resumed run continues bit for
bit, also between two measurements. Beside them lies what the next measurement and the bounds need.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pathsgd.distributed.sharded import gathered
from pathsgd.distributed.spread import is_sharded, own_part
from pathsgd.kernels.whiten import Outer, dense
from pathsgd.metric.absolute import is_blocked, log_sizes, resized
from pathsgd.metric.choice import Metric, PaperMetric
from pathsgd.metric.geometry import Geometry, Measure, measure
from pathsgd.metric.gradients import refuse_unfit
from pathsgd.metric.structures import Structure
from pathsgd.metric.whitening import WhiteningOf, Whitenings, balancing_ratios, is_large, whitenings
from pathsgd.network.node_spaces import NodeSpaces
from pathsgd.network.record.inputs import Call
from pathsgd.network.record.preserve import RandomState
from pathsgd.network.record.record import Output
from pathsgd.network.recurrences import Recurrence
from pathsgd.optim.last_inputs import LastInputs
from pathsgd.optim.loading import LARGEST_AGE
from pathsgd.optim.parts import Part
from pathsgd.optim.scale_free import ScaleFreeRows
from pathsgd.paths.kappa import Terms

Put = tuple[WhiteningOf, Tensor, Tensor | None]
"""A whitening that was measured, and its rows and columns as a state has them."""


class Refresh:
    """Measures the metric of one model again and again.

    model: the network; only its structure and weights are looked at.
    output: which of its results to measure.
    metric: what K is (metric/choice.py).
    terms: "first" kappa1, "both" kappa1 + kappa2.
    every: steps for which a measured metric serves.
    counts_from_start: the paper's kappa is counted in units of gamma^2 at the first measurement, instead of as it is.
    """

    def __init__(
        self,
        model: nn.Module,
        output: Output,
        metric: Metric | PaperMetric,
        terms: Terms,
        every: int,
        *,
        counts_from_start: bool,
    ) -> None:
        self.geometry = Geometry(model, output)
        self.metric, self.terms, self.every = metric, terms, every
        self.counts_from_start = counts_from_start
        self.forget()

    def forget(self) -> None:
        """Drop what is only kept to save work."""
        self._last: dict[
            str, WhiteningOf
        ] = {}  # whitenings of the last measurement, to be written over
        self._recurrences: Mapping[str, Recurrence] | None = None  # of the last measurement
        self._spaces: NodeSpaces | None = None  # of the last measurement
        self._rows: ScaleFreeRows | None = None  # of the last step
        self._bounds_steps = True
        self._told: set[str] = set()  # parameters that no path uses: said once for each

    def __getstate__(self) -> dict[str, Any]:
        return {
            **vars(self),
            "_last": {},
            "_spaces": None,
            "_rows": None,
            "_told": set(),
            "_recurrences": None,
        }

    def is_due(self, parts: Sequence[Part]) -> bool:
        """Whether a metric is too old, or a parameter has none yet; never while a step is captured in a graph."""
        if _is_capturing(parts[0].params[0].device):
            new = [
                name
                for part in parts
                for name, state in zip(part.names, part.states)
                if "age" not in state
            ]
            if new:
                raise RuntimeError(
                    f"parameter '{new[0]}' has no metric yet, and none can be measured while a step is captured: take "
                    "one step before"
                )
            return False
        return any(
            state.get("age", self.every) >= self.every for part in parts for state in part.states
        )

    def keep_up(
        self,
        parts: Sequence[Part],
        inputs: LastInputs,
        first: dict[str, Any],
        also: Sequence[Tensor] = (),
        *,
        bounds_steps: bool = True,
    ) -> Measure | None:
        """Measure again if it is time; None if all metrics serve on.

        first: the optimiser's first group, whoever has gradients; it keeps what is the same for all groups.
        also: numbers on the device that the host would like to see when it looks at the measurement (Measure.also).
        bounds_steps: whether somebody will ask how much a repeated matrix grows by a step (step_bound.py).
        """
        self._bounds_steps = bounds_steps
        measured = None
        if self.is_due(parts):
            measured = self._renew(parts, inputs, first, also)
        for part in parts:
            for state in part.states:
                state["age"] += 1
        return measured

    def recurrences(self, inputs: LastInputs) -> Mapping[str, Recurrence]:
        """The model's recurrent matrices, as they were used when the metric was last measured."""
        if self._recurrences is None:
            self._recurrences = self._structure(inputs).recurrences
        return self._recurrences

    def measure(
        self,
        inputs: LastInputs,
        root: float | None = None,
        parameters: dict[str, Tensor] | None = None,
        also: Sequence[Tensor] = (),
        seen: tuple[Call, RandomState | None] | None = None,
        *,
        free_only: bool = False,
    ) -> Measure:
        """The geometry at the current weights, as exact as a step needs it. seen: other inputs than the last."""
        call, dice = seen or (inputs.get(), inputs.dice)
        parameters = gathered(self.geometry.parameters()) if parameters is None else parameters
        with torch.enable_grad():  # kappa is a derivative; steps run without
            measured = self.geometry.measure(
                call, self.terms, exact=False, root=root, parameters=parameters, also=also, dice=dice,
                free_only=free_only,
            )  # fmt: skip
        inputs.learn_from(self.geometry.structures)
        return measured

    def scale_free_rows(self, parts: Sequence[Part], inputs: LastInputs) -> ScaleFreeRows:
        """The rows of these parts whose lengths nothing feels, as they are before a step."""
        if (
            self._spaces is None
        ):  # an optimiser that goes on where another stopped, between two measurements
            self._spaces = self._structure(inputs).spaces
        rows = self._rows
        if rows is None or rows.parts is not parts or rows.spaces is not self._spaces:
            self._rows = rows = ScaleFreeRows(parts, self._spaces)
        rows.remember()
        return rows

    def _structure(self, inputs: LastInputs) -> Structure:
        return self.geometry.structure(*inputs.get_agreed(self.geometry))

    def _renew(
        self,
        parts: Sequence[Part],
        inputs: LastInputs,
        first: dict[str, Any],
        also: Sequence[Tensor],
    ) -> Measure:
        """Measure, and put the metric into the states of these parts."""
        for part in parts:
            refuse_unfit(part.names, part.params, part.gradients())
        parameters = self.geometry.parameters()
        seen = inputs.get_agreed(self.geometry)
        # Under a metric of ours, what no rescaling changes has K = 1 whatever its kappa.
        free_only = isinstance(self.metric, Metric)
        measured = self.measure(
            inputs, parts[0].states[0].get("root"), parameters, also, seen, free_only=free_only
        )
        if self.counts_from_start and first.get("log_unit") is None:
            first["log_unit"] = measured.log_scale
        log_unit = first["log_unit"] if self.counts_from_start else 0.0
        is_absolute = isinstance(self.metric, Metric) and self.metric.absolute
        states = _measured_states(parts, measured) if is_absolute else {}
        kept = {name: state["log_size"] for name, state in states.items() if "log_size" in state}
        whitened = whitenings(
            measured, parameters, self.metric, log_unit=log_unit, last=self._last,
            log_sizes=kept if len(kept) == len(states) else None,
        )  # fmt: skip
        if is_absolute and not whitened.sized >= states.keys():
            sizes = self._log_sizes(states, kept, whitened, measured, parameters)
            whitened = resized(whitened, sizes, in_place=True)
        lost = _let_go(parts, measured)
        if lost:
            whitened.update(self._measured_elsewhere(lost, parameters, log_unit))
        for part in parts:
            self._set(part, whitened, measured, parameters)
        # Of what is spread over processes only this one's part is kept.
        self._spaces, self._last = measured.spaces, {} if parts[0].spread else whitened
        self._recurrences = measured.recurrences
        return measured

    def let_go(self, parts: Sequence[Part]) -> None:
        """Free the whitenings that are as large as their parameters, where the next step measures anew.

        So they are not there while the next pass forth and back needs memory. A net that has more than one structure
        keeps them: a parameter that a pass leaves out keeps the metric that it has.
        """
        if self.every > 1 or parts[0].spread is not None or len(self.geometry.structures) > 1:
            return
        for part in parts:
            large = [n for n, state in zip(part.names, part.states) if is_large(state["whitening"])]
            for name, state in zip(part.names, part.states):
                if name in large and all(state["whitening"].stride()):
                    state["whitening"] = (
                        state["whitening"].new_ones(()).expand(state["whitening"].shape)
                    )
                    state["age"] = LARGEST_AGE
                    self._last.pop(name, None)
                    part.put.pop(name, None)
                    part.update, part.worked_on = None, []

    def _measured_elsewhere(
        self, lost: Mapping[str, dict[str, Any]], parameters: dict[str, Tensor], log_unit: float
    ) -> dict[str, WhiteningOf]:
        """The metric of parameters that the last pass left out and that were let go, by the passes that use them."""
        found: dict[str, WhiteningOf] = {}
        for known in self.geometry.structures.all():
            names = lost.keys() & known.recording.reached - found.keys()
            if names:
                with torch.enable_grad():
                    measured = measure(known.recording, parameters, known.spaces, self.terms)
                made = whitenings(measured, parameters, self.metric, log_unit=log_unit)
                sizes = {name: lost[name]["log_size"] for name in names if "log_size" in lost[name]}
                found.update(
                    {
                        name: whitening
                        for name, whitening in resized(made, sizes).items()
                        if name in names
                    }
                )
        return found

    def _log_sizes(
        self,
        states: Mapping[str, dict[str, Any]],
        kept: dict[str, float],
        whitened: Whitenings,
        measured: Measure,
        parameters: Mapping[str, Tensor],
    ) -> dict[str, float]:
        """The sizes that the metric of each parameter keeps from its first measurement, of those that have none yet.

        Behind a parameter that is zero the size of others cannot be told, and what the rest has now would not fit them
        later: sizes then serve for this measurement only.
        """
        if measured.log_gamma_sq == -math.inf or len(kept) == len(states):
            return {name: size for name, size in kept.items() if name not in whitened.sized}
        sizes = {
            name: size
            for name, size in log_sizes(whitened, measured, parameters).items()
            if name in states
        }
        if not is_blocked(whitened, measured, parameters):
            for name, size in sizes.items():
                states[name].setdefault("log_size", size)
        return {**sizes, **kept}

    def _set(
        self,
        part: Part,
        whitened: Mapping[str, WhiteningOf],
        measured: Measure,
        parameters: Mapping[str, Tensor],
    ) -> None:
        ratios: dict[str, Tensor | None] = {}
        if measured.repeats and isinstance(self.metric, Metric) and self._bounds_steps:
            ratios = balancing_ratios(measured, parameters, self.metric.rho, measured.repeats)
        for name, p, grad, state in zip(part.names, part.params, part.gradients(), part.states):
            # A part that the last forward pass left out (another head, say) keeps the metric it has.
            if name in measured.kappa or "age" not in state or state["age"] >= LARGEST_AGE:
                if part.spread is not None:
                    state["whitening"] = _own(part, whitened[name], p, parameters[name])
                    state.pop("whitening_columns", None)
                else:
                    part.put[name] = _put(whitened[name], p, state, part.put.get(name))
                if name not in measured.kappa and name not in self._told and bool(grad.any()):
                    self._told.add(name)
                    _warn_of_no_path(name)
            if name in ratios:
                self._set_growth(part, p, state, measured.repeats[name], ratios[name])
            state["age"] = 0
            if measured.next_root is not None:
                state["root"] = (
                    measured.next_root
                )  # kept here, because a resumed run must start from the same one

    def _set_growth(
        self, part: Part, p: Tensor, state: dict[str, Any], repeats: int, ratio: Tensor | None
    ) -> None:
        state["repeats"] = repeats
        state.pop("growth_ratio", None)
        if ratio is not None:
            if (
                isinstance(self.metric, Metric) and self.metric.absolute
            ):  # a recurrent matrix: both metrics have mean 1
                ratio = ratio / ratio.log().mean().exp()
            state["growth_ratio"] = part.own(ratio.to(p))


def _is_capturing(device: torch.device) -> bool:
    """Whether what is launched now is captured in a graph instead of run."""
    if device.type == "cpu":
        return False
    asked = getattr(torch.get_device_module(device), "is_current_stream_capturing", None)
    return asked is not None and bool(asked())


def _let_go(parts: Sequence[Part], measured: Measure) -> dict[str, dict[str, Any]]:
    """The states of parameters that were not measured, and whose last metric is not there any more."""
    return {
        name: state
        for part in parts
        for name, state in zip(part.names, part.states)
        if name not in measured.kappa and state.get("age", 0) >= LARGEST_AGE and part.spread is None
    }


def _measured_states(parts: Sequence[Part], measured: Measure) -> dict[str, dict[str, Any]]:
    """The states, by name, of the parameters that were measured and that some rescaling changes."""
    return {
        name: state
        for part in parts
        for name, state in zip(part.names, part.states)
        if name in measured.kappa and measured.is_free(name)
    }


def _own(part: Part, whitening: WhiteningOf, p: Tensor, owner: Tensor) -> Tensor:
    """What a process that holds the part p of a parameter keeps of 1/sqrt(K)."""
    if isinstance(whitening, Tensor) and is_sharded(whitening):
        return own_part(whitening)
    if isinstance(whitening, Tensor) and whitening.numel() == 1:
        return whitening.expand(p.shape)
    return part.own(dense(whitening).expand(owner.shape))


def _put(whitening: WhiteningOf, p: Tensor, state: dict[str, Any], last: Put | None) -> Put:
    """Put 1/sqrt(K) into a state, unless it is there: written over the last one."""
    known, known_columns = state.get("whitening"), state.get("whitening_columns")
    if last is not None and last[0] is whitening and last[1] is known and last[2] is known_columns:
        return last
    rows, columns = (
        (whitening.rows, whitening.columns) if isinstance(whitening, Outer) else (whitening, None)
    )
    rows = rows if rows.shape == p.shape else rows.expand(p.shape)
    same = known is not None and known.shape == rows.shape and known.stride() == rows.stride()
    if known is None or not same or not p.is_cpu or known.data_ptr() != rows.data_ptr():
        state["whitening"] = rows
    if columns is None:
        state.pop("whitening_columns", None)
    elif known_columns is None or known_columns.data_ptr() != columns.data_ptr():
        state["whitening_columns"] = columns
    return whitening, state["whitening"], state.get("whitening_columns")


def _warn_of_no_path(name: str) -> None:
    warnings.warn(
        f"parameter '{name}' has a gradient, but no path to the measured output uses it: its metric is Euclidean, as "
        "Adam's; if the loss reads other results of the model, measure them with output=",
        RuntimeWarning,
        stacklevel=2,
    )
