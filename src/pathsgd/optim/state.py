"""What an optimiser remembers of each parameter, and how that is written into a state dict.

Every entry of a state dict is a number or a contiguous tensor, and its name and shape follow from
the parameter's shape and the options. So a new optimiser knows what a checkpoint holds
(torch.distributed.checkpoint), and no format of storage can change what is meant.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from pathsgd.arithmetic.growth import Directions
from pathsgd.distributed.spread import Spread, own_like, own_part, spread_of
from pathsgd.kernels.follow_directions import STARTS
from pathsgd.kernels.update import compute_dtype
from pathsgd.kernels.whiten import Outer, dense
from pathsgd.metric.whitening import WhiteningOf
from pathsgd.optim.rules import Rule, Settings

UNMEASURED = 1 << 41
"""The age of a metric that has never been measured."""
RELEASED = 1 << 40
"""The age of a metric whose memory was freed. Both are measured before the next step."""
_NONE, _DENSE, _ONE, _ROWS, _COLUMNS, _OUTER = range(6)
"""Which of its entries a whitening is made of: `whitening_form`."""
_WHITENING_ENTRIES = ("whitening", "whitening_form", "whitening_rows", "whitening_columns")
_OF_DIRECTIONS = ("rays", "age", "mean", "left")


@dataclass
class Growth:
    """What the bounds on growth remember of a matrix that paths use more than once."""

    repeats: int = 0
    """How often paths use the matrix; 0: it is not bounded step by step."""
    ratio: Tensor | None = None
    """What takes a whitened step to balanced coordinates; None for ones."""
    vector: Tensor | None = None
    """Where the power iteration for the length of a step starts."""
    room: float | Tensor | None = None
    """How much the next step may change what the matrix does over all its uses."""
    peak: float | Tensor | None = None
    """The highest uses * log(rate) of late."""
    uses: int = 0
    calls: int = 0
    looks: int = 0
    cap: float = 0.0
    rate: Tensor | None = None
    """Growth rate at the last look, 0-d."""
    scale: Tensor | None = None
    directions: Directions | None = None

    def entries(self, weight: Tensor) -> dict[str, Any]:
        """The entries of a state dict, but for `ratio`. weight: the parameter, whole or not."""
        shape = weight.shape
        units = len(weight) if len(shape) == 2 and shape[0] == shape[1] else 0
        empty = torch.zeros(0, dtype=compute_dtype(weight.dtype), device=weight.device)
        starts = STARTS if units else 0
        known = self.directions
        if known is None:
            ages, means = empty.new_zeros(starts), empty.new_zeros(starts)
            rays, left = empty.new_zeros(starts, units), empty.new_zeros(units)
            known = Directions(rays, ages, means, left, 0)
        vector = empty.new_zeros(math.prod(shape[1:])) if self.vector is None else self.vector
        found = {
            "repeats": self.repeats,
            "vector": vector,
            **{name: _number(getattr(self, name)) for name in ("room", "peak", "rate")},
            **{name: getattr(self, name) for name in ("uses", "calls", "looks", "cap")},
            "scale": empty.new_zeros(units) if self.scale is None else self.scale,
            **{name: getattr(known, name) for name in _OF_DIRECTIONS},
            "started": known.started,
        }
        return {f"growth_{name}": value for name, value in found.items()}

    @staticmethod
    def of(entries: Mapping[str, Any], like: Tensor) -> Growth:
        """From the entries of a state dict; tensors go to the device and dtype of `like`."""
        if "growth_looks" not in entries:
            return Growth()
        saved = {name: entries[f"growth_{name}"] for name in _GROWTH_ENTRIES}
        moved = {name: t.to(like) for name, t in saved.items() if isinstance(t, Tensor)}
        numbers = {name: saved[name] for name in ("repeats", "uses", "calls", "looks", "cap")}
        known = {name: saved[name] for name in ("room", "peak") if not math.isinf(saved[name])}
        if bool((moved["vector"] != 0).any()):
            known["vector"] = moved["vector"]
        if saved["looks"]:
            rays, age, mean, left = (moved[name] for name in _OF_DIRECTIONS)
            known["directions"] = Directions(rays, age, mean, left, saved["started"])
            known |= {"scale": moved["scale"], "rate": like.new_tensor(saved["rate"])}
        return Growth(**numbers, **known)


_GROWTH_ENTRIES = (
    *("repeats", "vector", "room", "peak", "rate", "uses", "calls", "looks", "cap", "scale"),
    *(*_OF_DIRECTIONS, "started"),
)


def on_like(directions: Directions, like: Tensor) -> Directions:
    """The directions on the device and in the dtype of `like`."""
    rays, age, mean, left = (getattr(directions, name).to(like) for name in _OF_DIRECTIONS)
    return Directions(rays, age, mean, left, directions.started)


@dataclass
class ParameterState:
    """What an optimiser remembers of one parameter."""

    rule: Any
    """The rule's own state (rules/)."""
    whitening: WhiteningOf | None = None
    """1/sqrt(K), broadcastable to the parameter's shape, or an outer product."""
    age: int = UNMEASURED
    """Steps that the metric has served."""
    log_size: float | None = None
    """Mean logarithm of 1/sqrt(K) at the first measurement, under the absolute metric."""
    root: float | None = None
    """Where the next measurement starts its power iteration."""
    growth: Growth = field(default_factory=Growth)
    keeps_ratio: bool = False
    """Whether `growth.ratio` is among the entries."""

    def __iter__(self) -> Iterator[str]:
        """The names of the entries; torch.distributed.checkpoint asks for them."""
        yield from ("age", *_WHITENING_ENTRIES, "log_size", "root")
        yield from (f"growth_{name}" for name in _GROWTH_ENTRIES)
        yield from ("growth_ratio", "growth_has_ratio") if self.keeps_ratio else ()
        yield from self.of_rule()

    def __getitem__(self, name: str) -> Any:
        """What the rule remembers, as with torch's optimisers: state[p]["exp_avg"]."""
        return self.of_rule()[name]

    def of_rule(self) -> dict[str, Any]:
        """The fields of the rule's own state that there are."""
        found = {f.name: getattr(self.rule, f.name) for f in fields(self.rule)}
        return {name: value for name, value in found.items() if value is not None}

    def dense_whitening(self) -> Tensor:
        """1/sqrt(K), broadcastable to the parameter's shape."""
        assert self.whitening is not None
        return dense(self.whitening)

    def rescale(self, c: Tensor, alpha: Tensor, powers: Mapping[str, int]) -> None:
        """Follow p -> c p. alpha: the factor of each unit that the parameter enters.

        powers: of c, by which the rule's tensors are multiplied.
        """
        if self.whitening is not None:
            self.whitening = self.dense_whitening() * c.to(self.dense_whitening())
        for name, power in powers.items():
            moment = getattr(self.rule, name)
            setattr(self.rule, name, moment * c.pow(power).to(moment))
        if self.log_size is not None:
            self.log_size += float(c.log().mean())
        if self.growth.scale is not None:
            self.growth.scale = self.growth.scale * alpha.to(self.growth.scale)


@dataclass(frozen=True)
class Codec:
    """Writes the states of an optimiser into a state dict, and reads them.

    keeps_ratios: whether steps are bounded in other coordinates than the whitened ones.
    """

    rule: Rule
    keeps_ratios: bool

    def new(self, p: Tensor, settings: Settings) -> ParameterState:
        """The state of a parameter before its first step."""
        rule = self.rule.init(self._like(p), settings)
        return ParameterState(rule, keeps_ratio=self.keeps_ratios)

    def _like(self, p: Tensor) -> Tensor:
        """What the rule sees of a parameter: its shape, device and dtype to compute in."""
        own, dtype = own_part(p.detach()), compute_dtype(p.dtype)
        if self.rule.is_elementwise:
            return torch.empty_like(own, dtype=dtype)
        return own.new_empty(p.shape, dtype=dtype)

    def entries(self, state: ParameterState, p: Tensor) -> dict[str, Any]:
        """The entries of a state dict."""
        spread, own = spread_of(p), own_part(p.detach())
        like = torch.empty(0, dtype=compute_dtype(p.dtype), device=own.device)
        found: dict[str, Any] = {"age": state.age, **_whitening_entries(state, own, p.shape, like)}
        for name in ("log_size", "root"):
            found[name] = _number(getattr(state, name))
        if self.keeps_ratios:
            ratio = state.growth.ratio
            ones = like.new_ones(own.shape)
            found["growth_ratio"] = ones if ratio is None else ratio.expand(own.shape)
            found["growth_has_ratio"] = int(ratio is not None)
        found |= state.growth.entries(p)
        found |= state.of_rule()
        found = {name: _alone(v) if isinstance(v, Tensor) else v for name, v in found.items()}
        if spread is not None:
            found |= {name: spread.joined(found[name], p) for name in self._shaped(found)}
        return found

    def _shaped(self, entries: Mapping[str, Any]) -> Iterator[str]:
        """The entries that have the shape of their parameter."""
        yield "whitening"
        if self.keeps_ratios:
            yield "growth_ratio"
        if self.rule.is_elementwise:
            ours = ("whitening", "growth_")
            of_rule = {name: v for name, v in entries.items() if not name.startswith(ours)}
            yield from (name for name, v in of_rule.items() if isinstance(v, Tensor))

    def read(self, saved: Mapping[str, Any], p: Tensor, settings: Settings) -> ParameterState:
        """The state of which `saved` has the entries; nothing in it is shared with `saved`."""
        state = self.new(p, settings)
        own = own_part(p.detach())
        like = torch.empty(0, dtype=compute_dtype(p.dtype), device=own.device)
        shaped = {name: own_like(p, saved[name]) for name in self._shaped(saved) if name in saved}
        entries = {
            name: v.to(like.device, copy=True).contiguous() if isinstance(v, Tensor) else v
            for name, v in {**saved, **shaped}.items()
        }
        state.age = int(entries["age"])
        state.whitening = _whitening_of(entries, own, spread_of(p), like)
        state.growth = Growth.of(entries, like)
        if self.keeps_ratios and entries.get("growth_has_ratio"):
            state.growth.ratio = entries["growth_ratio"].to(like)
        for name in ("log_size", "root"):
            setattr(state, name, None if math.isinf(entries[name]) else float(entries[name]))
        for f in fields(state.rule):
            if f.name in entries:
                value, new = entries[f.name], getattr(state.rule, f.name)
                if isinstance(value, Tensor):
                    value = value.to(new if isinstance(new, Tensor) else like)
                setattr(
                    state.rule, f.name, type(new)(value) if type(new) in (int, float) else value
                )
        self.rule.loaded(state.rule)
        return state

    def refuse_unfit(self, saved: Mapping[str, Any], name: str, p: Tensor) -> None:
        """Refuse entries of another optimiser, or of a parameter of another shape."""
        if saved and "whitening" not in saved:
            raise ValueError(
                f"the state of parameter '{name}' ({', '.join(sorted(saved))}) is not that of a "
                "path optimiser: moments of plain gradients (Adam's, SGD's) have other units; load "
                "the model's weights and make a new optimiser"
            )
        if saved and "whitening_form" not in saved:
            raise ValueError(
                f"the state of parameter '{name}' was written by a version before 0.3; load the "
                "model's weights and make a new optimiser"
            )
        for key in self._shaped(saved):
            if key in saved and saved[key].shape != p.shape:
                raise ValueError(
                    f"parameter '{name}' has shape {tuple(p.shape)} and its state '{key}' "
                    f"{tuple(saved[key].shape)}: the state is that of another model, or the "
                    "parameter was replaced; make a new optimiser"
                )


def _whitening_entries(
    state: ParameterState, own: Tensor, shape: torch.Size, like: Tensor
) -> dict[str, Any]:
    """1/sqrt(K) written out, and what it is made of: vectors of its rows and of its columns."""
    w = state.whitening
    rows = like.new_zeros(shape[0] if shape else 1)
    columns = like.new_zeros(math.prod(shape[1:]))
    if w is None:
        form = _NONE
    elif isinstance(w, Outer):
        form, rows, columns = _OUTER, w.rows.reshape(-1), w.columns.reshape(-1)
    elif w.numel() == own.numel() or own.shape != shape:  # of shards the vectors say nothing
        form = _DENSE
    elif w.numel() == 1:
        form, rows = _ONE, w.reshape(1).expand(rows.shape)
    elif len(w) > 1:
        form, rows = _ROWS, w.reshape(-1)
    else:
        form, columns = _COLUMNS, w.reshape(-1)
    written = like.new_ones(()) if w is None else dense(w)
    return {
        "whitening": written.expand(own.shape),
        "whitening_form": form,
        "whitening_rows": rows,
        "whitening_columns": columns,
    }


def _whitening_of(
    entries: Mapping[str, Any], own: Tensor, spread: Spread | None, like: Tensor
) -> WhiteningOf | None:
    form = int(entries["whitening_form"])
    rows, columns = (entries[f"whitening_{name}"].to(like) for name in ("rows", "columns"))
    ones = [1] * (own.dim() - 1)
    if form == _NONE:
        return None
    if form == _ONE:
        return rows[:1].clone().reshape([1] * own.dim())
    if form == _DENSE or spread is not None:
        return entries["whitening"].to(like)  # type: ignore[no-any-return]
    if form == _OUTER:
        return Outer(rows[:, None], columns[None])
    return rows.view(-1, *ones) if form == _ROWS else columns.view(1, *own.shape[1:])


def _alone(t: Tensor) -> Tensor:
    """A contiguous tensor that shares no storage with others."""
    t = t.detach().contiguous()
    is_alone = t.untyped_storage().nbytes() == t.numel() * t.element_size()
    return t if is_alone else t.clone()


def _number(value: float | Tensor | None) -> float:
    return math.inf if value is None else float(value)
