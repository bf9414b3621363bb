"""Everything an update needs to know of a model's geometry, measured at its current weights.

kappa / gamma^2 per parameter, the squared weights, and the node spaces. One recording per input
shape is kept; each measurement evaluates it once.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from pathsgd.arithmetic.scaled import are_in_range, postponed, read
from pathsgd.distributed.gathered import Gathered
from pathsgd.distributed.sharded import gathered
from pathsgd.distributed.spread import is_sharded
from pathsgd.kernels.whiten import Outer, dense
from pathsgd.metric.structures import Structure, Structures
from pathsgd.network.framing import Framing
from pathsgd.network.frozen import Frozen
from pathsgd.network.node_spaces import NodeSpaces, Place
from pathsgd.network.record.inputs import Call, call_of
from pathsgd.network.record.preserve import RandomState
from pathsgd.network.record.record import Output
from pathsgd.network.recurrences import Recurrence
from pathsgd.network.tape import Recording
from pathsgd.paths import chain
from pathsgd.paths import recurrent as closed_form
from pathsgd.paths import recurrent_on_device as on_device
from pathsgd.paths import recurrent_stack as stack
from pathsgd.paths.kappa import Kappa, Terms
from pathsgd.paths.match import PlainNet, StackNet
from pathsgd.paths.recurrent import PlainKappa
from pathsgd.paths.recurrent_stack import StackKappa

_ONE = torch.ones((), dtype=torch.float64)


@dataclass(frozen=True)
class Measure:
    """The geometry at one point: float64, unless measured for a step.

    Tensors broadcast to their parameters' shapes.

    kappa:  kappa / gamma^2, of the terms asked for; kappa itself where gamma^2 is zero
    kappa1: the same of the first term alone, from which path flow is made
    log_gamma_sq: log gamma^2, -inf where no path reaches the output
    flow: path flow per unit where already known, keyed by one parameter that enters those units
    repeats: how often paths use each parameter that they use more than once
    ahead: for parameters that enter units at places of their own (network/places.py), the
        derivative in what enters each node there, (free nodes + 1,), in a common unit
    """

    kappa: Mapping[str, Tensor | Outer]
    kappa1: Mapping[str, Tensor | Outer]
    log_gamma_sq: float
    spaces: NodeSpaces
    flow: Mapping[str, Tensor] = field(default_factory=dict)
    mass: Mapping[str, Tensor] = field(default_factory=dict)
    """Path mass over gamma^2 that enters each row of a matrix, where it is already known."""
    repeats: Mapping[str, int] = field(default_factory=dict)
    recurrences: Mapping[str, Recurrence] = field(default_factory=dict)
    """The matrices that the net applies to its own results, by name."""
    free: frozenset[str] | None = None
    """Parameters that some rescaling changes, where they are known already."""
    next_root: float | None = None
    """Start of the next power iteration on a plain recurrent net; changes only the last bits."""
    also: Sequence[float] = ()
    """Values of other device numbers, read in the same transfer as the measurement's own."""
    ahead: Mapping[str, Tensor] = field(default_factory=dict)
    is_plain: bool = False
    """Whether the net is a plain recurrent one: path sums span few layers (biases.py)."""

    def is_free(self, name: str) -> bool:
        """Whether some rescaling changes this parameter."""
        return self.spaces.edges[name].free if self.free is None else name in self.free

    @property
    def log_scale(self) -> float:
        """kappa = exp(log_scale) * what is stored."""
        return self.log_gamma_sq if self.log_gamma_sq > -torch.inf else 0.0


def measure(
    recording: Recording,
    parameters: Mapping[str, Tensor],
    spaces: NodeSpaces,
    terms: Terms = "first",
    also: Sequence[Tensor] = (),
    frozen: Frozen | None = None,
    bare: Container[str] = (),
    wanted: frozenset[str] | None = None,
    framing: Framing | None = None,
) -> Measure:
    """The general route: one evaluation of the squared network and its backward pass.

    frozen: what need not be looked at again; only the kappa that is needed is measured then.
    bare: parameters whose kappa1 may come as an outer product or in float32.
    framing: the steps that may work on small images (network/framing.py); ignored if frozen.
    wanted: parameters whose kappa is needed; None for all. Others that paths use get a one.
    """
    if terms == "first" and _device(parameters).type != "cpu":
        quickly = _measure_at_once(recording, parameters, spaces, also)
        if quickly is not None:
            return quickly
    places = spaces.places
    if frozen is None:
        at = [place.value for place in places.values()]
        measured = Kappa(
            recording, parameters, at, wanted=wanted, bare=bare, relative=True, framing=framing
        )
    else:
        recording, places = (
            frozen.live,
            {name: place for name, place in places.items() if name in frozen.wanted},
        )
        at = [place.value for place in places.values()]
        asked = frozen.wanted if wanted is None else frozen.wanted & wanted
        measured = Kappa(
            recording, parameters, at, frozen.sums(parameters), asked, bare, relative=True
        )
    total = measured.total
    empty = bool(total.mantissa == 0)
    weights = measured.evaluation.weights
    # What leads to no measured output has no metric here: Euclidean, see whitening.py.
    reached = {n: k for n, k in measured.first().items() if n in recording.reached}
    first: dict[str, Tensor | Outer] = {
        n: _unscaled(k, weights[n].log_scale) for n, k in reached.items()
    }
    once = {n: found for n, found in measured.first_of_bare().items() if n in recording.reached}
    first.update({n: k for n, (k, _) in once.items()})
    if wanted is not None:
        others = recording.reached if frozen is None else recording.reached & frozen.wanted
        first.update({n: _ONE for n in others - wanted})
    kappa = first
    if terms == "both":  # what is used once has none
        second = {n: _unscaled(k, weights[n].log_scale) for n, k in measured.second().items()}
        kappa = {
            n: k + second[n] if isinstance(k, Tensor) and n in second else k
            for n, k in first.items()
        }
    log_gamma_sq = -torch.inf if empty else float(total.mantissa.detach().log() + total.log_scale)
    mass = {n: rows for n, (_, rows) in once.items() if rows is not None}
    ahead = _ahead(measured, places, spaces)
    return Measure(kappa, first, log_gamma_sq, spaces, mass=mass, ahead=ahead, also=read([], also))


def _ahead(measured: Kappa, places: Mapping[str, Place], spaces: NodeSpaces) -> dict[str, Tensor]:
    derivatives = measured.in_values() if places else {}
    return {
        name: place.per_node(derivatives[place.value], spaces.count)
        for name, place in places.items()
    }


def _measure_at_once(
    recording: Recording,
    parameters: Mapping[str, Tensor],
    spaces: NodeSpaces,
    also: Sequence[Tensor],
) -> Measure | None:
    """The same with one device synchronisation, at the end; None if a number left the range."""
    with postponed() as largest:
        measured = Kappa(recording, parameters, [place.value for place in spaces.places.values()])
        total = measured.total.mantissa.detach()
    reached = {name: k for name, k in measured.first().items() if name in recording.reached}
    names, values = list(reached), list(reached.values())
    if values:
        largest.extend(torch._foreach_norm(values, math.inf))
    spread = {
        name: g for name, g in measured.evaluation.unsquared.items() if name in recording.reached
    }
    largest.extend(g.largest for g in spread.values() if isinstance(g, Gathered))
    numbers = read([total, *largest], also)
    gamma_sq, tops, others = numbers[0], numbers[1 : 1 + len(largest)], numbers[1 + len(largest) :]
    if not are_in_range([gamma_sq, *tops]):
        return None
    if gamma_sq > 0 and values:
        values = list(torch._foreach_mul(values, 1 / gamma_sq))
    kappa = dict(zip(names, values))
    share = 1 / gamma_sq if gamma_sq > 0 else 1.0
    kappa.update(
        {n: dense(k) * share for n, (k, _) in measured.first_of_bare().items() if n in spread}
    )
    log_gamma_sq = math.log(gamma_sq) if gamma_sq > 0 else -math.inf
    return Measure(
        kappa,
        kappa,
        log_gamma_sq,
        spaces,
        ahead=_ahead(measured, spaces.places, spaces),
        also=others,
    )


def _device(parameters: Mapping[str, Tensor]) -> torch.device:
    return next(iter(parameters.values())).device


def _is_plain(p: Tensor) -> bool:
    """Whether its square fits float64 without a scale, and the kernel accepts it.

    If sharded, only matrices: a convolution keeps its squared kernel for the backward pass.
    """
    is_dense = type(p) in (Tensor, nn.Parameter) or (is_sharded(p) and p.dim() == 2)
    return p.dtype is torch.float32 and p.is_cpu and is_dense


def _unscaled(kappa: Tensor, log_scale: Tensor) -> Tensor:
    return kappa if log_scale == 0 else kappa * torch.exp(-log_scale)


def _measure_of(
    first: PlainKappa | StackKappa, known: Structure, *, is_plain: bool = False
) -> Measure:
    """What the closed form of a recurrent net has found."""
    return Measure(
        first.kappa1,
        first.kappa1,
        first.log_gamma_sq,
        known.spaces,
        first.flow,
        repeats=known.repeats,
        recurrences=known.recurrences,
        free=known.free,
        next_root=first.next_root,
        also=first.also,
        is_plain=is_plain,
    )


def _measure_of_nothing(known: Structure, log_gamma_sq: float) -> Measure:
    """Of a net of which no rescaling changes any parameter: ones in the place of kappa."""
    ones = {name: _ONE for name in known.recording.reached}
    return Measure(
        ones,
        ones,
        log_gamma_sq,
        known.spaces,
        repeats=known.repeats,
        recurrences=known.recurrences,
        free=known.free,
    )


class Geometry:
    """Measures one model again and again, recording its structure where it is a new one."""

    def __init__(self, model: nn.Module, output: Output = None) -> None:
        self.model, self.output = model, output
        self.structures = Structures(model, output)

    def parameters(self) -> dict[str, Tensor]:
        """The model's parameters as they are now, by name."""
        return self.structures.parameters()

    def structure(
        self,
        inputs: Sequence[Any] | Call,
        dice: RandomState | None = None,
        parameters: dict[str, Tensor] | None = None,
    ) -> Structure:
        """What is known of the forward pass on these inputs, whatever the weights."""
        call = inputs if isinstance(inputs, Call) else call_of(self.model, inputs)
        return self.structures.find(
            call, self.parameters() if parameters is None else parameters, dice
        )

    def measure(
        self,
        inputs: Sequence[Any] | Call,
        terms: Terms = "first",
        *,
        exact: bool = True,
        root: float | None = None,
        parameters: dict[str, Tensor] | None = None,
        also: Sequence[Tensor] = (),
        dice: RandomState | None = None,
        free_only: bool = False,
    ) -> Measure:
        """The geometry at the current weights.

        exact: in float64. Otherwise a plain recurrent net in float32, and kernels of convolutions,
        are measured in float32 where the result is accurate to about 1e-5 of each entry
        (`closed_form.kappa`, `arithmetic.kernel`): enough for a step, and several times faster.
        For other nets only what a step needs is measured then, which excludes frozen parameters
        far from those that move.
        root: `next_root` of the last measurement; saves a plain recurrent net a power iteration.
        parameters: the model's, by name, if the caller has looked them up already.
        also: other numbers on the model's device, to be read in the same transfer.
        dice: the state of the random generators before the forward pass in question.
        free_only: where no rescaling changes a parameter, its kappa may be replaced by a one.
        """
        parameters = self.parameters() if parameters is None else parameters
        known = self.structure(inputs, dice, parameters)
        is_short = terms == "first" and not exact and _device(parameters).type == "cpu"
        if free_only and is_short and known.links is not None:
            log_gamma_sq = chain.log_gamma_sq(known.links, parameters)
            if log_gamma_sq is not None:
                return _measure_of_nothing(known, log_gamma_sq)
        has_form = isinstance(known.plain, PlainNet) or (
            isinstance(known.plain, StackNet) and is_short
        )
        if self.structures.is_sharded and (terms == "both" or has_form):
            parameters = gathered(parameters)  # closed forms and kappa2 need all of them together
        found = (
            stack.kappa1(known.plain, parameters, root)
            if isinstance(known.plain, StackNet) and is_short
            else None
        )
        if found is not None:
            return _measure_of(found, known)
        if not isinstance(known.plain, PlainNet):
            frozen = None if exact or terms == "both" else known.frozen(parameters)
            wanted = known.free if free_only and is_short else None
            able = known.bare if wanted is None else known.bare | (known.in_rows - wanted)
            bare = () if exact else [n for n in able if _is_plain(parameters[n])]
            framing = known.framing if is_short and known.framing else None
            measured = measure(
                known.recording,
                parameters,
                known.spaces,
                terms,
                also,
                frozen,
                bare,
                wanted,
                framing,
            )
            return replace(
                measured, repeats=known.repeats, recurrences=known.recurrences, free=known.free
            )
        if _device(parameters).type == "cpu":
            first = closed_form.kappa1(known.plain, parameters, root, exact=exact)
        else:
            first = on_device.kappa1(known.plain, parameters, root, also)
        measured = _measure_of(first, known, is_plain=True)
        if terms == "both":
            second = closed_form.kappa2(known.plain, parameters, first)
            kappa = {
                name: k + second[name] if name in second else k for name, k in first.kappa1.items()
            }
            return replace(measured, kappa=kappa)
        return measured

    def __getstate__(self) -> dict[str, Any]:
        # Recordings are made again.
        return {"model": self.model, "output": self.output}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]


def refuse_unfit(names: Sequence[str], params: Sequence[Tensor], grads: Sequence[Tensor]) -> None:
    """Refuse a gradient that is sparse or has not its parameter's shape."""
    for name, p, grad in zip(names, params, grads):
        if grad.is_sparse:
            raise RuntimeError(
                f"the gradient of '{name}' is sparse; use a dense one (Embedding(sparse=False))"
            )
        if grad.shape != p.shape:
            raise ValueError(
                f"parameter '{name}' has shape {tuple(p.shape)} and its gradient "
                f"{tuple(grad.shape)}: the parameter "
                "was replaced after the backward pass"
            )
