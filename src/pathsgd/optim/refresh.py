"""The metric in the parameters' states: measured when it is due, and kept there.

A state holds `whitening`, 1/sqrt(K), and `age`, the steps it has served. So a resumed run is
bitwise identical, also between two measurements.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pathsgd.distributed.sharded import gathered
from pathsgd.distributed.spread import is_sharded, own_part
from pathsgd.kernels.whiten import dense
from pathsgd.metric.absolute import is_blocked, log_sizes, resized
from pathsgd.metric.geometry import Geometry, Measure, measure, refuse_unfit
from pathsgd.metric.structures import Structure
from pathsgd.metric.whitening import WhiteningOf, Whitenings, balancing_ratios, is_large, whitenings
from pathsgd.network.node_spaces import NodeSpaces
from pathsgd.network.record.inputs import Call
from pathsgd.network.record.preserve import RandomState
from pathsgd.network.record.record import Output
from pathsgd.network.recurrences import Recurrence
from pathsgd.optim.last_inputs import LastInputs
from pathsgd.optim.plan import Part, Plan
from pathsgd.optim.scale_free import ScaleFreeRows
from pathsgd.optim.state import RELEASED, UNMEASURED, ParameterState
from pathsgd.torch_private import is_capturing


class Refresh:
    """Measures the metric of one model again and again.

    model: the network; only its structure and weights are read.
    output: which of its results to measure.
    """

    def __init__(self, model: nn.Module, output: Output, plan: Plan) -> None:
        self.geometry, self.plan = Geometry(model, output), plan
        self.forget()

    def forget(self) -> None:
        """Drop what is only kept to save work."""
        self._last: dict[str, WhiteningOf] = {}  # of the last measurement, to be written over
        self._recurrences: Mapping[str, Recurrence] | None = None  # of the last measurement
        self._spaces: NodeSpaces | None = None  # of the last measurement
        self._rows: ScaleFreeRows | None = None  # of the last step
        self._warned: set[str] = set()  # parameters that no path uses

    def __getstate__(self) -> dict[str, Any]:
        return {"geometry": self.geometry, "plan": self.plan}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.forget()

    def is_due(self, parts: Sequence[Part], *, on_device: bool) -> bool:
        """Whether a metric is too old or was never measured; never while a step is captured."""
        if on_device and is_capturing(parts[0].params[0].device):
            new = [n for n, state in _named(parts) if state.age == UNMEASURED]
            if new:
                raise RuntimeError(
                    f"parameter '{new[0]}' has no metric yet, and none can be measured while a "
                    "step is captured: take one step before"
                )
            return False
        return any(s.age >= self.plan.refresh_every for part in parts for s in part.states)

    def keep_up(
        self,
        parts: Sequence[Part],
        inputs: LastInputs,
        first: dict[str, Any],
        also: Sequence[Tensor] = (),
        *,
        on_device: bool,
    ) -> Measure | None:
        """Measure again if it is due; None if all metrics serve on.

        first: the optimiser's first group; it keeps what is the same for all groups.
        also: numbers on the device to be read together with the measurement's (Measure.also).
        """
        is_due = self.is_due(parts, on_device=on_device)
        measured = self._renew(parts, inputs, first, also) if is_due else None
        for part in parts:
            for state in part.states:
                state.age += 1
        return measured

    def recurrences(self, inputs: LastInputs) -> Mapping[str, Recurrence]:
        """The recurrent matrices, as they were used when the metric was last measured."""
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
        """The geometry at the current weights, as exact as a step needs it. seen: other inputs."""
        call, dice = seen or (inputs.get(), inputs.dice)
        parameters = gathered(self.geometry.parameters()) if parameters is None else parameters
        with torch.enable_grad():  # kappa is a derivative; steps run without
            measured = self.geometry.measure(
                call, self.plan.terms, exact=False, root=root, parameters=parameters, also=also,
                dice=dice, free_only=free_only,
            )  # fmt: skip
        inputs.learn_from(self.geometry.structures)
        return measured

    def scale_free_rows(self, parts: list[Part], inputs: LastInputs) -> ScaleFreeRows | None:
        """Scale-invariant rows of these parameters, as they are before a step; None without any."""
        if self._spaces is None:  # resumed between two measurements
            self._spaces = self._structure(inputs).spaces
        if not self._spaces.scale_free:
            return None
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
        parameters, plan = self.geometry.parameters(), self.plan
        seen = inputs.get_agreed(self.geometry)
        root, free_only = parts[0].states[0].root, not plan.metric.is_everywhere
        measured = self.measure(inputs, root, parameters, also, seen, free_only=free_only)
        if plan.log_unit and first.get("log_unit") is None:
            first["log_unit"] = measured.log_scale
        log_unit = first["log_unit"] if plan.log_unit else 0.0
        states = _measured_states(parts, measured) if plan.keeps_size else {}
        kept = {name: s.log_size for name, s in states.items() if s.log_size is not None}
        whitened = whitenings(
            measured, parameters, plan.metric, log_unit=log_unit, last=self._last,
            log_sizes=kept if len(kept) == len(states) else None,
        )  # fmt: skip
        if not whitened.sized >= states.keys():
            sizes = self._log_sizes(states, kept, whitened, measured, parameters)
            whitened = resized(whitened, sizes, in_place=True)
        released = {
            name: state
            for name, state in _named(parts)
            if name not in measured.kappa and state.age == RELEASED
        }
        if released:
            whitened.update(self._measured_elsewhere(released, parameters, log_unit))
        for part in parts:
            self._set(part, whitened, measured, parameters)
        # Of what is sharded only this process's part is kept.
        self._spaces, self._last = measured.spaces, {} if parts[0].spread else whitened
        self._recurrences = measured.recurrences
        return measured

    def release(self, parts: Sequence[Part]) -> None:
        """Free the whitenings that are as large as their parameters, where the next step measures.

        So they do not take memory while the next pass forth and back needs it. A net that has more
        than one structure keeps them: a parameter that a pass leaves out keeps its metric.
        """
        if self.plan.refresh_every > 1 or len(self.geometry.structures) > 1:
            return
        for part in parts:
            if part.spread is not None:
                continue
            for name, state in zip(part.names, part.states):
                if state.whitening is not None and is_large(state.whitening):
                    state.whitening, state.age = None, RELEASED
                    self._last.pop(name, None)
                    part.passes, part.works_on = None, []

    def _measured_elsewhere(
        self, wanted: Mapping[str, ParameterState], parameters: dict[str, Tensor], log_unit: float
    ) -> dict[str, WhiteningOf]:
        """The metric of parameters that the last pass left out, by the passes that use them."""
        found: dict[str, WhiteningOf] = {}
        for known in self.geometry.structures.all():
            names = wanted.keys() & known.recording.reached - found.keys()
            if names:
                with torch.enable_grad():
                    measured = measure(known.recording, parameters, known.spaces, self.plan.terms)
                made = whitenings(measured, parameters, self.plan.metric, log_unit=log_unit)
                sizes = {n: size for n in names if (size := wanted[n].log_size) is not None}
                made = resized(made, sizes)
                found.update({name: made[name] for name in names})
        return found

    def _log_sizes(
        self,
        states: Mapping[str, ParameterState],
        kept: dict[str, float],
        whitened: Whitenings,
        measured: Measure,
        parameters: Mapping[str, Tensor],
    ) -> dict[str, float]:
        """The sizes that each metric keeps from its first measurement, of those that have none yet.

        A zero parameter hides the sizes of the parameters behind it, and the sizes of the rest
        would not fit them later: in that case sizes serve for this measurement only.
        """
        if not measured.log_gamma_sq > -torch.inf or len(kept) == len(states):
            return {name: size for name, size in kept.items() if name not in whitened.sized}
        found = log_sizes(whitened, measured, parameters)
        sizes = {name: size for name, size in found.items() if name in states}
        if not is_blocked(whitened, measured, parameters):
            for name, size in sizes.items():
                if states[name].log_size is None:
                    states[name].log_size = size
        return {**sizes, **kept}

    def _set(
        self,
        part: Part,
        whitened: Mapping[str, WhiteningOf],
        measured: Measure,
        parameters: Mapping[str, Tensor],
    ) -> None:
        ratios: dict[str, Tensor | None] = {}
        if measured.repeats and self.plan.bounds_steps:
            ratios = balancing_ratios(measured, parameters, self.plan.metric, measured.repeats)
        for name, p, grad, state in zip(part.names, part.params, part.gradients(), part.states):
            # A part that the last forward pass left out (another head, say) keeps its metric.
            if name in measured.kappa or state.age >= RELEASED:
                owner, made = parameters[name], whitened[name]
                state.whitening = made if part.spread is None else _own(part, made, owner)
                if name not in measured.kappa and name not in self._warned and bool(grad.any()):
                    self._warned.add(name)
                    _warn_of_no_path(name)
            if name in ratios:
                state.growth.repeats, ratio = measured.repeats[name], ratios[name]
                state.growth.ratio = None if ratio is None else part.own(ratio.to(p))
            state.age = 0
            if measured.next_root is not None:
                state.root = measured.next_root  # a resumed run must start from the same one


def _named(parts: Sequence[Part]) -> Iterator[tuple[str, ParameterState]]:
    return (pair for part in parts for pair in zip(part.names, part.states))


def _measured_states(parts: Sequence[Part], measured: Measure) -> dict[str, ParameterState]:
    """The states of the parameters that were measured and that some rescaling changes."""
    return {n: s for n, s in _named(parts) if n in measured.kappa and measured.is_free(n)}


def _own(part: Part, whitening: WhiteningOf, owner: Tensor) -> Tensor:
    """What this process keeps of 1/sqrt(K)."""
    if isinstance(whitening, Tensor) and is_sharded(whitening):
        return own_part(whitening)
    if isinstance(whitening, Tensor) and whitening.numel() == 1:
        return whitening
    return part.own(dense(whitening).expand(owner.shape))


def _warn_of_no_path(name: str) -> None:
    warnings.warn(
        f"parameter '{name}' has a gradient, but no path to the measured output uses it: its "
        "metric "
        "is Euclidean, as Adam's; if the loss reads other results of the model, measure them with "
        "output=",
        RuntimeWarning,
        stacklevel=2,
    )
