"""The bound on growth rates: uses * log(rate) <= limit for every recurrent matrix after each step.

In a recurrent net it is a state that explodes, not a step: a direction of h -> relu(W h) that grows
by `rate` per use has grown by exp(uses * log(rate)) at the end, whatever the input. Every run of
every optimiser passes through such states while it learns. The bound moves the one direction that
grows too fast back to the cap and leaves the rest of W alone (arithmetic/growth.py). It is
invariant, costs a few matrix-vector products per step, and works with any optimiser.
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
from pathsgd.kernels.update import compute_dtype
from pathsgd.metric.structures import shapes_of
from pathsgd.network.record.inputs import call_of
from pathsgd.network.record.record import Output, record
from pathsgd.network.recurrences import Recurrence, recurrences
from pathsgd.network.tape import Recording
from pathsgd.optim.plan import LIMIT, Part
from pathsgd.optim.state import Growth, on_like
from pathsgd.optim.step_bound import make_room
from pathsgd.paths.growth import map_of, whitening_of
from pathsgd.paths.kappa import Kappa

_SCALE_SERVES = 100  # looks; only which coordinates power iteration works in, so it need not be new
_EVERY = 2  # steps from look to look, 1 after a look that found a rate above the cap
_looks: WeakTensorKeyDictionary = WeakTensorKeyDictionary()  # type: ignore[type-arg]
_UNITS_A_STEP = (
    400  # a matrix n times as large is looked at every n-th time: its products wait for memory
)


def _is_due(weight: Tensor, state: Growth, cap: float, *, is_whole: bool = True) -> bool:
    """Whether this call looks at a matrix; all calls for it are counted here.

    Looks at a sharded matrix are collective: processes agree on their number, not on what they
    compute.
    """
    calls, state.calls = state.calls, state.calls + 1
    if state.rate is None or cap < state.cap:
        return True
    every = max(_EVERY, len(weight) // _UNITS_A_STEP)
    was_above = is_whole and every == _EVERY and state.rate.is_cpu and float(state.rate) > cap
    return was_above or calls % every == 0


def bound_matrix_(
    weight: Tensor,
    state: Growth,
    recurrence: Recurrence,
    cap: float,
    whitening: Callable[[], Tensor],
) -> Tensor:
    """Bound one matrix in place, and keep in `state` what the next call starts from.

    Returns the rate found, 0-d. whitening: gives 1/sqrt(K) of the matrix; called now and then.
    """
    looks, state.looks, state.cap = state.looks, state.looks + 1, cap
    look, directions = _looks.get(weight), state.directions
    renews = looks % _SCALE_SERVES == 0
    if look is not None and directions and not renews and look.serves(weight, directions.rays):
        state.rate = torch.tensor(look.bound(cap), dtype=weight.dtype)
        directions.started = look.directions.started
    else:
        state.rate = _bound_anew(weight, state, recurrence, cap, whitening if renews else None)
    return state.rate


def _bound_anew(
    weight: Tensor,
    state: Growth,
    recurrence: Recurrence,
    cap: float,
    whitening: Callable[[], Tensor] | None,
) -> Tensor:
    """Bound a matrix in the coordinates of its whitening, or of the last look."""
    is_narrow = compute_dtype(weight.dtype) != weight.dtype
    work = weight.detach().float() if is_narrow else weight.detach()
    scale = None if whitening or state.scale is None else state.scale.to(work)
    f = map_of(recurrence, work, whitening() if whitening else None, scale)
    state.scale = f.scale
    if state.directions is not None:
        directions = on_like(state.directions, work)  # the model may have changed its precision
        rate = growth.bound_(f, directions, cap)
    else:
        rate = growth.settle_(f, cap)
        directions = growth.ripe_directions(f)
    if is_narrow:
        weight.detach().copy_(work)
    elif look := Look.at(f, directions):
        _looks[weight], directions = look, look.directions
    state.directions = directions
    return rate


def cap_of(limit: float, uses: float) -> float:
    """The growth rate at which uses * log(rate) = limit."""
    return math.exp(min(limit / max(uses, 1), 700.0))  # above that nothing is bounded


class _Kept:
    """State kept between calls of `bound_growth_` on one model; holds no reference to the model."""

    def __init__(self) -> None:
        self.recurrences: dict[Any, list[Recurrence]] = {}
        self.states: dict[str, Growth] = {}


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
    """Bound the growth rate of every recurrent matrix in place: horizon * log(rate) <= limit.

    Returns the rates before the bound: 0-d tensors by parameter name.

    inputs: example inputs of the model; only shapes and dtypes matter.
    limit: the log factor by which a signal may grow over all uses of a matrix.
    horizon: the number of uses; None: as many as these inputs make, the longest seen so far.
    state: where to keep the directions for the next call, by parameter. `optimizer.state` saves
        them with the optimiser, so a resumed run is bitwise identical; None: with the model.
    output: the result of the model to measure, an index, a key or a function; None takes the first
        tensor.

    Call it after every step of any optimiser, as `clip_grad_norm_` is called before it. The first
    call for a model searches thoroughly. Later calls follow the directions found, on every second
    call (less often for large matrices), with a few matrix-vector products, and correct the one
    that grows most; what one look leaves above the cap, the next one finds. Matrices that do not
    require gradients are ignored. PathAdam and PathSGD do this themselves (`growth=`).

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
            "horizon must be positive and finite, or None for the uses of these inputs, got "
            f"{horizon}"
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
            known = _known(kept, name, weight, state)
            known.uses = max(recurrence.uses, known.uses)
            cap = cap_of(limit, known.uses if horizon is None else horizon)
            if _is_due(weight, known, cap):
                bound_matrix_(weight, known, recurrence, cap, functools.partial(whitening, name))
            assert known.rate is not None
            rates[name] = known.rate
            if state is not None:
                state[weight].update(known.entries(weight))
    return rates


def _known(
    kept: _Kept, name: str, weight: Tensor, state: MutableMapping[Tensor, dict[str, Any]] | None
) -> Growth:
    """What is remembered of a matrix, beside the model or in another optimiser's state."""
    known = kept.states.setdefault(name, Growth())
    if state is None:
        return known
    rays = None if known.directions is None else known.directions.rays
    if rays is None or state[weight].get("growth_rays") is not rays:  # a state that was loaded
        like = torch.empty(0, dtype=compute_dtype(weight.dtype), device=weight.device)
        kept.states[name] = known = Growth.of(state[weight], like)
    return known


def bound_parts_(
    parts: Sequence[Part], found: Mapping[str, Recurrence], limit: float, *, is_measured: bool
) -> dict[str, Tensor]:
    """Bound the recurrent matrices among an optimiser's parameters, using its states.

    is_measured: whether this step measured the metric. Between measurements the horizon stays the
    same whatever the lengths of the inputs: a resumed run must not depend on inputs it did not see.
    """
    rates = {}
    for part in parts:
        for index, (name, p, state) in enumerate(zip(part.names, part.params, part.states)):
            recurrence, known = found.get(name), state.growth
            if recurrence is None:
                continue
            if is_measured or not known.uses:
                known.uses = max(recurrence.uses, known.uses)
            cap = cap_of(limit, known.uses)
            owner = part.owners[index]  # its shape is the same in every process
            if _is_due(owner, known, cap, is_whole=part.spread is None):
                weight = part.whole(p, index)
                whitening = functools.partial(_whitening, part, index)
                rate = bound_matrix_(weight, known, recurrence, cap, whitening)
                if weight is not p:
                    p.copy_(part.own(weight))
                make_room(known, rate, recurrence)
            assert known.rate is not None
            rates[name] = known.rate
    return rates


def _whitening(part: Part, index: int) -> Tensor:
    whitening = part.states[index].dense_whitening().expand(part.params[index].shape)
    return part.whole(whitening, index)
