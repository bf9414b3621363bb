"""The bound on growth rates: uses * log(rate) <= limit for every recurrent matrix, kept after each step.

What explodes in a recurrent net is a state, not a step: a direction of h -> relu(W h) that grows by `rate` each time
has grown by exp(uses * log(rate)) at the end, whatever entered. Every run of every optimiser passes through such states
while it learns. The bound moves the one direction that grows too fast back to the cap and leaves the rest of W alone
(arithmetic/growth.py): invariant, a few matrix-vector products a step, for any optimiser.
"""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from pathsgd.arithmetic import growth
from pathsgd.distributed.sharded import refuse_sharded
from pathsgd.kernels.look import Look
from pathsgd.metric.structures import shapes_of
from pathsgd.network.record.inputs import call_of
from pathsgd.network.record.record import Output, record
from pathsgd.network.recurrences import Recurrence, recurrences
from pathsgd.network.tape import Recording
from pathsgd.optim.parts import Part
from pathsgd.optim.step_bound import LEAST_ROOM, RELEASE
from pathsgd.paths.growth import map_of, whitening_of
from pathsgd.paths.kappa import Kappa

LIMIT = 3.0
"""Default of uses * log(rate): a signal may grow 20 times between the first use and the last."""
_SCALE_SERVES = 100  # looks; only which coordinates power iteration works in, so it need not be new
_EVERY = 2  # steps from look to look, 1 after a look that found a rate above the cap
_TENSORS = ("growth_scale", "growth_rays", "growth_age", "growth_mean", "growth_left")
_looks: WeakTensorKeyDictionary = WeakTensorKeyDictionary()  # type: ignore[type-arg]
_UNITS_A_STEP = (
    400  # a matrix n times as large is looked at every n-th time: its products wait for memory
)


def _is_due(weight: Tensor, state: dict[str, Any], cap: float, *, is_whole: bool = True) -> bool:
    """Whether this call looks at a matrix; all calls for it are counted here.

    Looks at a sharded matrix are collective: processes agree on their number, not on what they compute.
    """
    calls = state.get("growth_calls", 0)
    state["growth_calls"] = calls + 1
    if "growth_rate" not in state or cap < state["growth_cap"]:
        return True
    every = max(_EVERY, len(weight) // _UNITS_A_STEP)
    rate = state["growth_rate"]
    was_above = is_whole and every == _EVERY and rate.is_cpu and float(rate) > cap
    return was_above or calls % every == 0


def bound_matrix_(
    weight: Tensor,
    state: dict[str, Any],
    recurrence: Recurrence,
    cap: float,
    whitening: Callable[[], Tensor],
) -> Tensor:
    """Bound one matrix in place, and keep what the next call starts from in `state`; returns the rate found, 0-d.

    whitening: gives 1/sqrt(K) of the matrix; asked now and then.
    """
    looks = state.get("growth_looks", 0)
    state["growth_looks"], state["growth_cap"] = looks + 1, cap
    look = _looks.get(weight)
    if look is not None and looks % _SCALE_SERVES and look.serves(weight, state["growth_rays"]):
        rate = torch.tensor(look.bound(cap), dtype=weight.dtype)
        state["growth_started"] = look.directions.started
    else:
        rate = _bound_anew(
            weight, state, recurrence, cap, whitening if looks % _SCALE_SERVES == 0 else None
        )
    state["growth_rate"] = rate
    return rate


def _bound_anew(
    weight: Tensor,
    state: dict[str, Any],
    recurrence: Recurrence,
    cap: float,
    whitening: Callable[[], Tensor] | None,
) -> Tensor:
    """Bound a matrix in the coordinates of its whitening, or in those of the last look; prepare for the next one."""
    work = (
        weight.detach()
        if weight.dtype in (torch.float32, torch.float64)
        else weight.detach().float()
    )
    kept = {
        key: state[key].to(work) for key in _TENSORS if key in state
    }  # the model may have changed its precision
    f = map_of(
        recurrence,
        work,
        whitening() if whitening else None,
        None if whitening else kept["growth_scale"],
    )
    state["growth_scale"] = f.scale
    if "growth_rays" in state:
        directions = growth.Directions(
            kept["growth_rays"],
            kept["growth_age"],
            kept["growth_mean"],
            kept["growth_left"],
            state["growth_started"],
        )
        rate = growth.bound_(f, directions, cap)
    else:
        rate = growth.settle_(f, cap)
        directions = growth.ripe_directions(f)
    if work.dtype != weight.dtype:
        weight.detach().copy_(work)
    elif look := Look.at(f, directions):
        _looks[weight], directions = look, look.directions
    state.update({f"growth_{key}": value for key, value in vars(directions).items()})
    return rate


def cap_of(limit: float, uses: float) -> float:
    """The growth rate at which uses * log(rate) = limit."""
    return math.exp(min(limit / max(uses, 1), 700.0))  # above that nothing is bounded


class _Kept:
    """What calls of `bound_growth_` on one model keep for the next; nothing that refers to the model."""

    def __init__(self) -> None:
        self.recurrences: dict[Any, list[Recurrence]] = {}
        self.states: dict[str, dict[str, Any]] = {}


_kept: weakref.WeakKeyDictionary[nn.Module, _Kept] = weakref.WeakKeyDictionary()


@torch.no_grad()
def bound_growth_(
    model: nn.Module,
    *inputs: Any,
    limit: float = LIMIT,
    horizon: float | None = None,
    state: MutableMapping[Tensor, dict[str, Any]] | None = None,
    output: Output = None,
) -> dict[str, Tensor]:
    """Bound the growth rate of every recurrent matrix, in place: horizon * log(rate) <= limit. Returns the rates found.

    inputs: example inputs of the model; only shapes and dtypes matter.
    limit: the log factor by which a signal may grow on its way through all uses of a matrix.
    horizon: over how many uses; None: as many as these inputs make, the longest seen so far.
    state: where to keep what the next call starts from, by parameter: `optimizer.state`, so that it is saved with it
        and a resumed run continues bit for bit; None: beside the model, for as long as it lives.
    output: which of the model's results to measure, an index, a key or a function; None takes the first tensor.

    Call it after every step of any optimiser, as `clip_grad_norm_` is called before it. The rates (0-d tensors by
    parameter name) are those before the bound. The first call for a model looks at it thoroughly; the next ones follow
    the directions that it found, at the cost of a few matrix-vector products, every second one (large matrices: less
    often), and correct the one that grows most: what a single look leaves above the cap the next one finds. Matrices
    that do not require gradients are not moved, and not looked at. PathAdam and PathSGD do this themselves (`growth=`).

    >>> import torch
    >>> rnn = torch.nn.RNN(2, 8, nonlinearity="relu")
    >>> x = torch.rand(20, 4, 2)
    >>> optimizer = torch.optim.Adam(rnn.parameters(), lr=1e-2)
    >>> rnn(x)[0].sum().backward()
    >>> optimizer.step()
    >>> rates = bound_growth_(rnn, x)
    """
    if not 0 < limit < math.inf:
        raise ValueError(f"limit must be positive and finite, got {limit}")
    if horizon is not None and not 0 < horizon < math.inf:
        raise ValueError(
            f"horizon must be positive and finite, or None for the uses of these inputs, got {horizon}"
        )
    refuse_sharded(model, "bound_growth_", "use PathSGD or PathAdam")
    kept = _kept.setdefault(model, _Kept())
    recording: list[Recording] = []

    def recorded() -> Recording:
        if not recording:
            recording.append(record(model, inputs, output))
        return recording[0]

    key = shapes_of(call_of(model, inputs)), tuple(output) if isinstance(output, list) else output
    if key not in kept.recurrences:
        kept.recurrences[key] = recurrences(recorded())
    parameters = dict(model.named_parameters())

    def whitening(name: str) -> Tensor:
        with torch.enable_grad():  # kappa is a derivative
            return whitening_of(
                Kappa(recorded(), parameters).first(), name, parameters[name].detach()
            )

    rates = {}
    for recurrence in kept.recurrences[key]:
        name, weight = recurrence.name, parameters[recurrence.name]
        if weight.requires_grad:
            known = kept.states.setdefault(name, {}) if state is None else state[weight]
            known["growth_uses"] = max(recurrence.uses, known.get("growth_uses", 0))
            cap = cap_of(limit, known["growth_uses"] if horizon is None else horizon)
            if _is_due(weight, known, cap):
                bound_matrix_(weight, known, recurrence, cap, functools.partial(whitening, name))
            rates[name] = known["growth_rate"]
    return rates


def make_room(state: dict[str, Any], rate: Tensor, recurrence: Recurrence, uses: int) -> None:
    """Say in a state how much the next step may change what a matrix does over all its uses (step_bound.py).

    It shrinks as the rate rises, at once, and opens again slowly: a correction may have taken a net far below the cap,
    and steps as long as that leaves room for would take it past the cap before the next look.
    """
    gain = recurrence.gain if isinstance(recurrence.gain, float) else float(recurrence.gain.amax())
    peak = state.get("growth_peak")
    if rate.is_cpu:
        log = uses * math.log(max(float(rate), 1e-30))
        state["growth_peak"] = peak = log if peak is None else max(log, float(peak) - RELEASE)
        state["growth_room"] = (
            LEAST_ROOM + uses * max(0.0, 1 - math.exp(min(peak / uses, 0.0)))
        ) / gain
        return
    there = rate.clamp(min=1e-30).log() * uses
    new = there if peak is None else there.clamp(min=peak - RELEASE)
    left = (LEAST_ROOM + uses * (1 - (new / uses).exp()).clamp(min=0)) / gain
    state["growth_peak"] = new
    known = state.get("growth_room")
    state["growth_room"] = (
        known.copy_(left) if isinstance(known, Tensor) else left
    )  # a captured step reads it there


def bound_parts_(
    parts: Sequence[Part], found: Mapping[str, Recurrence], limit: float, *, is_measured: bool
) -> dict[str, Tensor]:
    """Bound the recurrent matrices among the parameters of an optimiser, with what their states keep.

    is_measured: whether the metric was measured in this step. Between two measurements the horizon stays, whatever the
    lengths of the inputs: a resumed run, which looks at its inputs anew, must not know more.
    """
    rates = {}
    for part in parts:
        for index, (name, p, state) in enumerate(zip(part.names, part.params, part.states)):
            recurrence = found.get(name)
            if recurrence is None:
                continue
            if is_measured or "growth_uses" not in state:
                state["growth_uses"] = max(recurrence.uses, state.get("growth_uses", 0))
            uses = state["growth_uses"]
            cap = cap_of(limit, uses)
            owner = part.owners[index]  # its shape is the same in every process
            if _is_due(owner, state, cap, is_whole=part.spread is None):
                weight = part.whole(p, index)
                rate = bound_matrix_(
                    weight, state, recurrence, cap, functools.partial(_whitening, part, index)
                )
                if weight is not p:
                    p.copy_(part.own(weight))
                make_room(state, rate, recurrence, uses)
            rates[name] = state["growth_rate"]
    return rates


def _whitening(part: Part, index: int) -> Tensor:
    return part.whole(part.states[index]["whitening"], index)
