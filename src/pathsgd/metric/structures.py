"""What is known of a model's structure, and when to record it again.

A recording is valid as long as the forward pass takes the same route. This depends on the shapes of
the inputs and the values of structural ones; on the modules, their mode and their plain attributes
(a flag, a depth); and it shows in which parameters have gradients.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torch import Tensor, nn

from pathsgd.distributed.spread import is_sharded
from pathsgd.network.framing import Framing
from pathsgd.network.frozen import Frozen
from pathsgd.network.node_spaces import NodeSpaces
from pathsgd.network.nodes import spaces_of
from pathsgd.network.record.inputs import Call, is_sparse, numbered_tensors, objects_in
from pathsgd.network.record.preserve import RandomState
from pathsgd.network.record.record import Output, record
from pathsgd.network.recurrences import Recurrence, recurrences, rolled
from pathsgd.network.sharing import repeats_along_paths
from pathsgd.network.squared import in_rows, used_once
from pathsgd.network.tape import Recording, alike
from pathsgd.paths.chain import Link, chain
from pathsgd.paths.match import PlainNet, StackNet, match

_REMEMBERED = 64
"""Recordings are small; this many of them (for sequence lengths, say) are kept."""
_THROWS = 8
"""Maximal number of recordings to find the route of a random forward pass of unknown seed."""
_PLAIN = (bool, int, float, str, type(None))
_LAYERS = ("torch.nn.", "pathsgd.nn.")


@dataclass(frozen=True)
class Structure:
    """What is known of one forward pass of a model, whatever its weights."""

    recording: Recording
    spaces: NodeSpaces
    plain: PlainNet | StackNet | None
    repeats: dict[str, int]
    """How often paths may use each parameter that they use more than once."""
    free: frozenset[str]
    """Parameters that some rescaling changes."""
    recurrences: dict[str, Recurrence]
    """The matrices that the net applies to its own results, by name."""
    bare: frozenset[str] = frozenset()
    """Parameters that are used once, in a way that needs no q."""
    in_rows: frozenset[str] = frozenset()
    """Matrices that need no q if nobody wants their kappa."""
    links: Sequence[Link] | None = None
    """The layers of a chain that no rescaling changes: only gamma^2 has to be measured."""
    _frozen: dict[frozenset[str], Frozen] = field(default_factory=dict, repr=False)

    @cached_property
    def framing(self) -> Framing:
        """The steps that may work on small images, where all parameters can move."""
        return Framing(self.recording.steps, self.recording.inputs)

    def frozen(self, parameters: Mapping[str, Tensor]) -> Frozen | None:
        """What a measurement for steps of these parameters can skip; None if all can move."""
        moving = frozenset(
            name for name in self.recording.parameters if parameters[name].requires_grad
        )
        if (
            len(moving) == len(self.recording.parameters)
            or not next(iter(parameters.values())).is_cpu
        ):
            return None
        if moving not in self._frozen:
            self._frozen.clear()  # one is enough: who is frozen changes seldom
            self._frozen[moving] = Frozen(self.recording, self.spaces, moving)
        return self._frozen[moving]

    def is_of(self, parameters: Mapping[str, Tensor]) -> bool:
        """Whether these parameters have the shapes that were recorded."""
        return all(
            name in parameters and parameters[name].shape == v.shape
            for name, v in self.recording.parameters.items()
        )


@dataclass
class _Variants:
    """The structures for one state of the modules and shape of the inputs, by their differences."""

    structural: frozenset[int] = frozenset()
    """Numbers of the inputs whose values are structure."""
    known: dict[Any, Structure] = field(default_factory=dict)


class Structures:
    """The structures of one model."""

    def __init__(self, model: nn.Module, output: Output) -> None:
        self.model, self.output = model, output
        self._variants: dict[Any, _Variants] = {}
        self._last: tuple[Any, Structure] | None = None
        self._call: Call | None = None
        self._shapes: tuple[Any, ...] = ()  # of the call that came last
        self._ignored: set[tuple[int, str]] = set()  # attributes whose change has changed nothing
        self.throws_dice = False
        """Whether the forward pass takes ways that only its dice explain."""
        self._look_around()

    @property
    def structural(self) -> frozenset[int]:
        """Numbers of the inputs whose values were structure in some recording."""
        return frozenset().union(*(v.structural for v in self._variants.values()))

    def _look_around(self) -> None:
        # Walking the modules at every step would cost a good part of measuring a small net.
        self._modules = list(self.model.modules())
        self._parts = _parts(self._modules)
        # Layers of torch and pathsgd stay as built; modules written by users may have flags.
        self._written = [
            (k, m)
            for k, m in enumerate(self._modules)
            if not type(m).__module__.startswith(_LAYERS)
        ]
        self.is_sharded = any(map(is_sharded, self.model.parameters()))
        known: set[int] = set()
        self._owners: list[tuple[str, dict[str, Tensor | None], str]] = []
        for prefix, module in self.model.named_modules():
            for name, p in module._parameters.items():
                if p is not None and id(p) not in known:
                    known.add(id(p))
                    self._owners.append(
                        (f"{prefix}.{name}" if prefix else name, module._parameters, name)
                    )

    def parameters(self) -> dict[str, Tensor]:
        """The model's parameters as they are now, by name."""
        if _parts(self._modules) != self._parts:  # a layer was added, replaced or taken away
            self._look_around()
            self._variants.clear()
        return {name: owner[key] for name, owner, key in self._owners}  # type: ignore[misc]

    def find(
        self, call: Call, parameters: dict[str, Tensor], dice: RandomState | None = None
    ) -> Structure:
        """The structure of the forward pass that made the current gradients; records a new one.

        dice: the state of the random generators before that pass, if known.
        """
        state = self._state()
        if call is not self._call:
            self._call, self._shapes = call, shapes_of(call)
        variants = self._variants.setdefault((self._shapes, state), _Variants())
        # Parameters gathered from other processes have no gradients; the model's own do.
        trained = frozenset(
            name
            for name, owner, key in self._owners
            if owner[key].grad is not None  # type: ignore[union-attr]
        )
        key = (_values(call, variants.structural), trained)
        structure = variants.known.get(key)
        if (
            structure is None
            or not structure.is_of(parameters)
            or (dice is not None and self.throws_dice)
        ):
            structure = self._recorded(call, parameters, trained, dice)
            if not structure.recording.structural <= variants.structural:
                variants.structural |= structure.recording.structural
                key = (_values(call, variants.structural), trained)
            self._make_room()
            variants.known[key] = structure
        self._last = (state, structure)
        return structure

    def _state(self) -> tuple[Any, ...]:
        modes = tuple([module.training for module in self._modules])
        flags = tuple([flag for flag in self._flags() if flag[:2] not in self._ignored])
        return modes, flags

    def _flags(self) -> Iterator[tuple[int, str, Any]]:
        for k, module in self._written:
            for name, value in vars(module).items():
                if type(value) in _PLAIN:
                    yield k, name, value

    def all(self) -> Iterator[Structure]:
        """The structures that are remembered."""
        return (
            structure
            for variants in self._variants.values()
            for structure in variants.known.values()
        )

    def __len__(self) -> int:
        """How many structures are remembered."""
        return sum(len(v.known) for v in self._variants.values())

    def _make_room(self) -> None:
        while len(self) >= _REMEMBERED:
            oldest = next(v.known for v in self._variants.values() if v.known)
            del oldest[next(iter(oldest))]

    def _recorded(
        self,
        call: Call,
        parameters: dict[str, Tensor],
        trained: frozenset[str],
        dice: RandomState | None,
    ) -> Structure:
        recording = self._record(call, dice)
        self.throws_dice |= recording.branches_at_random
        if (
            recording.branches_at_random
            and dice is None
            and not _explains(recording, trained, parameters)
        ):
            recording = self._search(call, trained, parameters, recording)
        for variants in self._variants.values():
            for known in variants.known.values():
                if known.is_of(parameters) and alike(known.recording, recording):
                    self._ignore_what_changed(known)
                    return known
        spaces = spaces_of(recording, parameters, exact=False)
        free = frozenset(name for name, edges in spaces.edges.items() if edges.free)
        repeated = {recurrence.name: recurrence for recurrence in recurrences(recording)}
        plain, repeats = match(recording), repeats_along_paths(recording)
        once, rows = used_once(recording), in_rows(recording)
        links = None if free & recording.reached else chain(recording)
        return Structure(recording, spaces, plain, repeats, free, repeated, once, rows, links)

    def _record(self, call: Call, dice: RandomState | None) -> Recording:
        if dice is None:
            return rolled(record(self.model, call, self.output))
        with dice.applied():
            return rolled(record(self.model, call, self.output))

    def _search(
        self, call: Call, trained: frozenset[str], parameters: dict[str, Tensor], first: Recording
    ) -> Recording:
        """Redraw until the recording reaches the parameters that have gradients, or nearly."""
        best = first
        for seed in range(_THROWS):
            with RandomState.seeded(seed).applied():
                found = rolled(record(self.model, call, self.output))
            if len(found.reached ^ trained) < len(best.reached ^ trained):
                best = found
            if _explains(best, trained, parameters):
                break
        return best

    def _ignore_what_changed(self, known: Structure) -> None:
        """A counter among the attributes: it changed, and the network did not."""
        if self._last is None or self._last[1] is not known:
            return
        before = dict(((k, name), value) for k, name, value in self._last[0][1])
        now = {(k, name): value for k, name, value in self._flags()}
        self._ignored |= {at for at, value in now.items() if at in before and before[at] != value}


def _explains(recording: Recording, trained: frozenset[str], parameters: dict[str, Tensor]) -> bool:
    """Whether the parameters with gradients are those that the recorded pass uses."""
    learning = {
        name for name in recording.reached if name in parameters and parameters[name].requires_grad
    }
    return not trained or learning == trained


def _parts(modules: list[nn.Module]) -> list[int]:
    """The identity of everything that a model is made of."""
    return [
        id(part)
        for m in modules
        for parts in (m._modules, m._parameters)
        for part in parts.values()
    ]


def shapes_of(call: Call) -> tuple[Any, ...]:
    """Shapes, dtypes and devices of a call's tensors; other arguments by value or identity."""
    tensors = tuple((tuple(a.shape), a.dtype, a.device) for a in numbered_tensors(call))
    return (
        tensors,
        tuple(call.kwargs),
        *(a if isinstance(a, _PLAIN) else _Same(a) for a in objects_in(call)),
    )


class _Same:
    """An object as a key, equal only to itself; held, so that its address is not reused."""

    def __init__(self, item: Any) -> None:
        self.item = item

    def __hash__(self) -> int:
        return id(self.item)

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, _Same) and self.item is other.item


def _values(call: Call, structural: frozenset[int]) -> tuple[Any, ...]:
    """The values of the inputs that are structure."""
    if not structural:
        return ()
    tensors = numbered_tensors(call)
    return tuple(_bytes(tensors[k].detach()) for k in sorted(structural) if k < len(tensors))


def _bytes(tensor: Tensor) -> bytes:
    if is_sparse(tensor):
        entries = tensor.to_sparse_coo().coalesce()
        return _bytes(entries.indices()) + _bytes(entries.values())
    return tensor.cpu().numpy().tobytes()
