"""Everything an update needs to know of a model's geometry, measured at its current weights.

kappa / gamma^2 per parameter, the squared weights, and the node spaces: one recording per input shape, kept; one
evaluation per measurement.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from pathsgd.arithmetic.scaled import are_in_range, postponed, read
from pathsgd.closed_form import kappa as closed_form
from pathsgd.closed_form import on_device
from pathsgd.closed_form.match import PlainNet, match
from pathsgd.passes.nodes import NodeSpaces, spaces_of
from pathsgd.passes.recurrences import Recurrence, recurrences
from pathsgd.passes.sharing import repeats_along_paths
from pathsgd.quantities.kappa import Kappa, Terms
from pathsgd.recording.record import Output, record
from pathsgd.tape import Recording

# Recordings are small; this many input shapes (sequence lengths, say) are remembered.
_REMEMBERED = 64


@dataclass(frozen=True)
class Measure:
    """The geometry at one point. Tensors broadcast to their parameters' shapes; float64, unless measured for a step.

    kappa:  kappa / gamma^2, of the terms asked for; kappa itself where gamma^2 is zero
    kappa1: the same of the first term alone, from which path flow is made
    log_gamma_sq: log gamma^2, -inf where no path reaches the output
    flow: path flow per unit where it is already known, by the name of one parameter that enters those units
    repeats: how often paths use each parameter that they use more than once
    """

    kappa: dict[str, Tensor]
    kappa1: dict[str, Tensor]
    log_gamma_sq: float
    spaces: NodeSpaces
    flow: Mapping[str, Tensor] = field(default_factory=dict)
    repeats: Mapping[str, int] = field(default_factory=dict)
    recurrences: Mapping[str, Recurrence] = field(default_factory=dict)
    """The matrices that the net applies to its own results, by name."""
    free: frozenset[str] | None = None
    """Parameters that some rescaling changes, where they are known already."""
    next_root: float | None = None
    """Where to start the next measurement of a plain recurrent net; it changes the last bits of the result."""
    also: Sequence[float] = ()
    """The values of other numbers on the device, which were read together with the measurement's own."""

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
) -> Measure:
    """The general route: one evaluation of the squared network and its backward pass."""
    if terms == "first" and _device(parameters).type != "cpu":
        quickly = _measure_at_once(recording, parameters, spaces, also)
        if quickly is not None:
            return quickly
    measured = Kappa(recording, parameters)
    total = measured.total
    empty = bool(total.mantissa == 0)
    divisor = 1.0 if empty else float(total.mantissa.detach())
    first = {n: _relative(k, divisor, measured.evaluation.weights[n].log_scale) for n, k in measured.first().items()}
    kappa = first
    if terms == "both":
        weights = measured.evaluation.weights
        second = {n: _relative(k, divisor, weights[n].log_scale) for n, k in measured.second().items()}
        kappa = {n: first[n] + second[n] for n in first}
    log_gamma_sq = -torch.inf if empty else float(total.mantissa.detach().log() + total.log_scale)
    return Measure(kappa, first, log_gamma_sq, spaces, also=read([], also))


def _measure_at_once(
    recording: Recording, parameters: Mapping[str, Tensor], spaces: NodeSpaces, also: Sequence[Tensor]
) -> Measure | None:
    """The same with one wait for the device, at the end; None if some number has left the range meanwhile."""
    with postponed() as largest:
        measured = Kappa(recording, parameters)
        total = measured.total.mantissa.detach()
    names, values = list(measured.first()), list(measured.first().values())
    if values:
        largest.extend(torch._foreach_norm(values, math.inf))
    numbers = read([total, *largest], also)
    gamma_sq, tops, others = numbers[0], numbers[1 : 1 + len(largest)], numbers[1 + len(largest) :]
    if not are_in_range([gamma_sq, *tops]):
        return None
    if gamma_sq > 0 and values:
        values = list(torch._foreach_mul(values, 1 / gamma_sq))
    kappa = dict(zip(names, values))
    return Measure(kappa, kappa, math.log(gamma_sq) if gamma_sq > 0 else -math.inf, spaces, also=others)


def _device(parameters: Mapping[str, Tensor]) -> torch.device:
    return next(iter(parameters.values())).device


def _relative(kappa: Tensor, divisor: float, log_scale: Tensor) -> Tensor:
    return kappa / divisor if log_scale == 0 else kappa / divisor * torch.exp(-log_scale)


@dataclass(frozen=True)
class Structure:
    """What is known of a model at one shape of its inputs, whatever its weights."""

    recording: Recording
    spaces: NodeSpaces
    plain: PlainNet | None
    repeats: dict[str, int]
    """How often paths may use each parameter that they use more than once."""
    free: frozenset[str]
    """Parameters that some rescaling changes."""
    recurrences: dict[str, Recurrence]
    """The matrices that the net applies to its own results, by name."""

    def is_of(self, parameters: Mapping[str, Tensor]) -> bool:
        """Whether these parameters have the shapes that were recorded."""
        return all(
            name in parameters and parameters[name].shape == v.shape for name, v in self.recording.parameters.items()
        )


class Geometry:
    """Measures one model again and again, recording its structure once per shape of its inputs."""

    def __init__(self, model: nn.Module, output: Output = None) -> None:
        self.model, self.output = model, output
        self._structures: dict[Any, Structure] = {}
        self._look_around()

    def _look_around(self) -> None:
        # Walking through the modules at every step costs a good part of what measuring a small net does. Recordings,
        # too, are of the modules that a model has when it is first seen.
        self._modules = list(self.model.modules())
        known: set[int] = set()
        self._owners: list[tuple[str, dict[str, Tensor | None], str]] = []
        for prefix, module in self.model.named_modules():
            for name, p in module._parameters.items():
                if p is not None and id(p) not in known:
                    known.add(id(p))
                    self._owners.append((f"{prefix}.{name}" if prefix else name, module._parameters, name))

    def parameters(self) -> dict[str, Tensor]:
        """The model's parameters as they are now, by name."""
        found = {name: owner.get(key) for name, owner, key in self._owners}
        if any(p is None for p in found.values()):  # one was taken away or renamed
            self._look_around()
            return dict(self.model.named_parameters())
        return found  # type: ignore[return-value]

    def structure(self, inputs: Sequence[Any]) -> Structure:
        key = shape_key(inputs), tuple(module.training for module in self._modules)
        known = self._structures.get(key)
        if known is None or not known.is_of(self.parameters()):
            self._look_around()
            recording = record(self.model, inputs, self.output)
            spaces = spaces_of(recording, self.parameters(), exact=False)
            free = frozenset(name for name, edges in spaces.edges.items() if edges.free)
            repeated = {recurrence.name: recurrence for recurrence in recurrences(recording)}
            known = Structure(recording, spaces, match(recording), repeats_along_paths(recording), free, repeated)
            while len(self._structures) >= _REMEMBERED:
                del self._structures[next(iter(self._structures))]
            self._structures[key] = known
        return known

    def measure(
        self,
        inputs: Sequence[Any],
        terms: Terms = "first",
        *,
        exact: bool = True,
        root: float | None = None,
        parameters: Mapping[str, Tensor] | None = None,
        also: Sequence[Tensor] = (),
    ) -> Measure:
        """The geometry at the current weights.

        exact: in float64. Otherwise a plain recurrent net in float32 is measured in float32 where its result can be
        vouched for, to about 1e-5 of each entry (`closed_form.kappa`): enough for a step, and several times faster.
        root: `next_root` of the last measurement, which saves a plain recurrent net a power iteration.
        parameters: the model's, by name, where somebody has looked them up already.
        also: other numbers on the model's device that shall be read together with the measurement's own.
        """
        known = self.structure(inputs)
        parameters = self.parameters() if parameters is None else parameters
        if known.plain is None:
            measured = measure(known.recording, parameters, known.spaces, terms, also)
            return replace(measured, repeats=known.repeats, recurrences=known.recurrences, free=known.free)
        if _device(parameters).type == "cpu":
            first = closed_form.kappa1(known.plain, parameters, root, exact=exact)
        else:
            first = on_device.kappa1(known.plain, parameters, root, also)
        kappa = first.kappa1
        if terms == "both":
            second = closed_form.kappa2(known.plain, parameters, first)
            kappa = {name: k + second[name] if name in second else k for name, k in kappa.items()}
        return Measure(
            kappa,
            first.kappa1,
            first.log_gamma_sq,
            known.spaces,
            first.flow,
            known.repeats,
            known.recurrences,
            known.free,
            first.next_root,
            first.also,
        )

    def __getstate__(self) -> dict[str, Any]:
        # Recordings are made again.
        return {"model": self.model, "output": self.output}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]


def shape_key(inputs: Sequence[Any]) -> tuple[Any, ...]:
    """What a recording depends on: shapes and dtypes, and values where they are structure (lengths, flags).

    Integer vectors beside other inputs are taken for lengths; where there is nothing else they are indices.
    """
    leaves = tree_leaves(list(inputs))
    has_others = any(isinstance(a, Tensor) and (a.is_floating_point() or a.dim() > 1) for a in leaves)

    def key(a: Any) -> Any:
        if not isinstance(a, Tensor):
            return a if isinstance(a, (int, float, str, bool, type(None))) else id(a)
        is_structure = has_others and a.dim() == 1 and not a.is_floating_point()
        return tuple(a.shape), a.dtype, a.device, tuple(a.tolist()) if is_structure else None

    return tuple(key(a) for a in leaves)
