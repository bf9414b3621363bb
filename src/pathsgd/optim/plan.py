"""An optimiser's options, resolved once, and the parts: parameters that are stepped together.

A `Plan` is made when the optimiser is built. `Parts` are put together anew when other parameters
have gradients, or when they moved to another device; a step follows both and decides nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, MutableMapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, Literal

from torch import Tensor, nn

from pathsgd.distributed.owners import Owned, at_owners, owned, share_state
from pathsgd.distributed.spread import Spread, is_sharded, own_like, own_part, spread_of, total
from pathsgd.metric.bounds import DualNorm, Length, bound_of
from pathsgd.metric.choice import Metric, MetricChoice, PaperMetric, chosen
from pathsgd.optim.rules import Rule
from pathsgd.optim.state import ParameterState
from pathsgd.paths.kappa import Terms

Bound = float | Literal["auto"] | None
"""A bound, None for no bound, "auto" for the default of the metric."""
LIMIT = 3.0
"""Default of uses * log(rate): a signal may grow 20 times between the first use and the last."""


@dataclass(frozen=True)
class Plan:
    """The options of an optimiser, checked and resolved."""

    metric: Metric | PaperMetric
    rule: Rule
    terms: Terms
    clip: DualNorm | Length | None
    growth: float | None
    """Bound on uses * log(growth rate) of recurrent matrices."""
    bounds_steps: bool
    """Whether each step keeps to the room that the growth rates leave."""
    refresh_every: int
    """Steps for which a measured metric serves."""
    capturable: bool
    keeps_size: bool
    """Whether the metric keeps the size of its first measurement."""
    log_unit: bool
    """Whether kappa is counted in units of gamma^2 at the first measurement."""

    @property
    def whitens(self) -> bool:
        """Whether directions are whitened a second time; else the rule is fed with grad / kappa."""
        return self.metric.whitens_moments or not self.rule.powers

    @staticmethod
    def of(
        metric: MetricChoice,
        rule: Rule,
        terms: Terms,
        clip: Bound | DualNorm,
        growth: Bound,
        refresh_every: int,
        capturable: bool,
        log_unit: bool,
    ) -> Plan:
        """Resolve what users say."""
        if terms not in ("first", "both"):
            raise ValueError(f"terms must be 'first' or 'both', got {terms!r}")
        if not 1 <= refresh_every < math.inf:
            raise ValueError(
                f"refresh_every must be a number of steps, at least 1, got {refresh_every}"
            )
        metric = chosen(metric)
        bound = bound_of(metric.usual_clip if clip == "auto" else clip, metric)  # type: ignore[arg-type]
        limit = (LIMIT if metric.bounds_growth else None) if growth == "auto" else growth
        if limit is not None and (isinstance(limit, str) or not 0 < limit < math.inf):
            raise ValueError(f"growth must be positive and finite, None or 'auto', got {growth!r}")
        limit = None if limit is None else float(limit)
        bounds_steps = limit is not None and metric.bounds_growth
        return Plan(
            metric, rule, terms, bound, limit, bounds_steps, int(refresh_every), capturable,
            metric.keeps_size, log_unit,
        )  # fmt: skip


@dataclass(eq=False)
class Part:
    """Parameters of one group that have gradients, with one dtype, on one device, and their states.

    One pass of a kernel updates all of them.
    """

    group: dict[str, Any]
    names: list[str]
    owners: list[Tensor]
    """The parameters as the model has them."""
    states: list[ParameterState]
    spread: Spread | None = None
    """How they are spread over processes; None where this process has all of them."""
    is_fused: bool = True
    """Whether kernels compute the rule."""
    params: list[Tensor] = field(default_factory=list)
    """What this process holds of the parameters: usually the parameters themselves."""
    passes: Any = None
    """What the last step prepared; it serves while it works on the same tensors (step.py)."""
    works_on: list[Any] = field(default_factory=list)
    _is_ahead: bool = field(default=False, init=False)
    """Whether owners remember what other processes do not know."""

    def __post_init__(self) -> None:
        self.find_own()

    def find_own(self) -> None:
        """Look where this process's parts of the parameters lie now."""
        self.params[:] = self.owners if self.spread is None else map(own_part, self.owners)

    def gradients(self) -> list[Tensor]:
        """The gradients of what this process holds; each parameter has one."""
        gradients: list[Tensor] = [p.grad for p in self.owners]  # type: ignore[misc]
        return gradients if self.spread is None else list(map(own_like, self.owners, gradients))

    def own(self, whole: Tensor) -> Tensor:
        """This process's part of a tensor in the shape of a parameter."""
        return whole if self.spread is None else self.spread.own(whole)

    def whole(self, own: Tensor, index: int) -> Tensor:
        """The tensor of which every process has a part, as of the parameter `index`."""
        if self.spread is None:
            return own
        return self.spread.joined(own, self.owners[index]).full_tensor()  # type: ignore[no-any-return]

    @cached_property
    def _owned(self) -> list[Owned] | None:
        """Which process computes each parameter's direction; None where all compute all."""
        if self.spread is None:
            return None
        return owned(self.spread, [p.shape for p in self.owners])

    def directions(self, us: Iterable[Tensor], rule: Rule) -> list[Tensor]:
        """This process's parts of d, by the rule's `direction`. us: its parts of u."""

        def direction(index: int, u: Tensor) -> Tensor:
            return rule.direction(u, self.states[index].rule, self.group)

        if self._owned is None:
            return [self.own(direction(i, self.whole(u, i))) for i, u in enumerate(us)]
        self._is_ahead = True
        return at_owners(list(us), self._owned, direction)

    def share_states(self) -> None:
        """Give every process the states that only owners have kept up to date."""
        if self._is_ahead and self._owned is not None:
            for matrix, state in zip(self._owned, self.states):
                share_state(matrix, state.rule)
        self._is_ahead = False

    def summed(self, numbers: Tensor) -> Tensor:
        """Numbers added up over the processes that hold other parts of these parameters."""
        return numbers if self.spread is None else self.spread.summed(numbers)


def adder(parts: Sequence[Part]) -> Callable[[Tensor], Tensor] | None:
    """Adds up one number for each parameter over the processes that hold other parts of it.

    None where no process does.
    """
    spreads = [part.spread for part in parts for _ in part.params]
    if all(spread is None for spread in spreads):
        return None
    device = parts[0].params[0].device
    return lambda numbers: total(numbers, spreads, device)


class Parts:
    """The parts of an optimiser's parameters.

    rule: what their steps are made by.
    new: makes the state of a parameter that has none.
    settle: brings the states up to date before they are compared.
    """

    def __init__(
        self,
        names: dict[int, str],
        rule: Rule,
        new: Callable[[Tensor, dict[str, Any]], ParameterState],
        settle: Callable[[], None],
    ) -> None:
        self.names, self._rule, self._new, self._settle = names, rule, new, settle
        self._present: list[list[Any]] = []
        self._parts: list[Part] = []
        self.is_on_device = False
        """Whether a step can run on a GPU (or other accelerator) without waiting for it."""

    def with_gradients(
        self, groups: list[dict[str, Any]], states: MutableMapping[Tensor, ParameterState]
    ) -> list[Part]:
        """The parameters that have gradients."""
        present = [[p.grad is not None and p.device for p in group["params"]] for group in groups]
        if present != self._present or any(
            states.get(part.owners[0]) is not part.states[0] for part in self._parts
        ):
            self.share_states()
            self._settle()
            self._parts = [part for group in groups for part in self._put_together(group, states)]
            self._present = present
            self.is_on_device = _are_on_device(self._parts)
        for part in self._parts:
            if part.spread is not None:
                part.find_own()
        return self._parts

    def share_states(self) -> None:
        """Give every process the whole state of every parameter; all must call this together."""
        for part in self._parts:
            part.share_states()

    def _put_together(
        self, group: dict[str, Any], states: MutableMapping[Tensor, ParameterState]
    ) -> list[Part]:
        """Those of a group, together where dtype, device, sharding and counts of steps agree."""
        joining = [p for p in group["params"] if p.grad is not None]
        for p in joining:
            if not states.get(p):
                states[p] = self._new(p, group)
        known = [states[p].rule for p in group["params"] if states.get(p)]
        self._rule.arrange([states[p].rule for p in joining], known, group)
        together: dict[Any, list[Tensor]] = {}
        for p in joining:
            state = states[p].rule
            key = p.dtype, p.device, spread_of(p), *self._fused_with(state, p, group)
            together.setdefault(key, []).append(p)
        return [
            Part(
                group,
                [self.names[id(p)] for p in ps],
                ps,
                [states[p] for p in ps],
                spread_of(ps[0]),
                bool(key[3]),
            )
            for key, ps in together.items()
        ]

    def _fused_with(self, state: Any, p: Tensor, group: dict[str, Any]) -> list[int]:
        """What must be equal for the kernels to take parameters together; nothing if they do not.

        They update a sharded parameter shard by shard, which a rule may not allow.
        """
        is_whole = spread_of(p) is None or self._rule.is_elementwise
        if is_whole and self._rule.fused(state, group, 1.0) is not None:
            return [1, *_counts(state)]
        return [0]


def _counts(state: Any) -> list[int]:
    values = [getattr(state, f.name) for f in fields(state)]
    return [value for value in values if isinstance(value, int)]


def _are_on_device(parts: list[Part]) -> bool:
    return bool(parts) and (
        len(devices := {part.params[0].device for part in parts}) == 1
        and devices.pop().type != "cpu"
    )


def has_shards(model: nn.Module) -> bool:
    """Whether processes hold parts of the model's parameters."""
    return any(is_sharded(p) for p in model.parameters())
