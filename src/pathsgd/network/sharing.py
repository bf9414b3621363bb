"""Which parameters some path uses more than once: only these have a kappa2.

Followed by sets: every value knows the parameters that lie on paths into it, and a product of two
values whose sets overlap puts one parameter twice on a path. The answer is by whole parameters and
may name too many, never too few.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pathsgd.network.rules.base import products, repeats
from pathsgd.network.tape import Kind, Recording, Value


@dataclass
class Shared:
    """Parameters that some path uses more than once."""

    recurrent: set[str] = field(default_factory=set)
    """... only as the recurrent matrix of RNN layers: kappa2 in closed form."""
    general: set[str] = field(default_factory=set)
    """... in any other way: kappa2 by automatic differentiation."""


def parameters_shared_along_paths(recording: Recording) -> Shared:
    """Parameters that some path uses more than once."""
    names = recording.names
    upstream: dict[Value, frozenset[str]] = {
        value: frozenset([name]) for value, name in names.items()
    }
    shared = Shared()
    for step in recording.steps:
        for product in products(step):
            on_path: set[str] = set()
            for factor in product:
                names_of_factor = frozenset().union(*(upstream.get(v, frozenset()) for v in factor))
                shared.general |= on_path & names_of_factor
                on_path |= names_of_factor
        for value in step.rule.recurrent(*step.args, **step.kwargs):
            if value in names:
                shared.recurrent.add(names[value])
            else:  # made from parameters: no closed form in terms of those
                shared.general |= upstream.get(value, frozenset())
        everything = frozenset().union(*(upstream.get(v, frozenset()) for v in step.operands))
        upstream.update({value: everything for value in step.outputs if value is not None})
    shared.recurrent -= shared.general
    return shared


def views(recording: Recording) -> dict[Value, list[str]]:
    """Parameters and values made by moving their entries, with the parameters' names."""
    viewed = {value: [name] for name, value in recording.parameters.items()}
    for step in recording.steps:
        if step.rule.moves and all(v in viewed for v in step.operands):
            names = sorted({name for v in step.operands for name in viewed[v]})
            viewed.update(
                {
                    value: names
                    for value in step.outputs
                    if value is not None and value.kind is Kind.WEIGHT
                }
            )
    return viewed


def uses(recording: Recording) -> dict[str, int]:
    """How often each parameter is used, a recurrent layer's once per time step; moves are none."""
    viewed = views(recording)
    counts = dict.fromkeys(recording.parameters, 0)
    for step in recording.steps:
        if any(v in viewed for v in step.outputs if v is not None):
            continue
        for name in (name for v in step.operands for name in viewed.get(v, ())):
            counts[name] += repeats(step)
    return counts


def repeats_along_paths(recording: Recording) -> dict[str, int]:
    """The number of uses of parameters that some path uses more than once."""
    shared = parameters_shared_along_paths(recording)
    counts: dict[str, int] = {}
    for step in recording.steps:
        for name in {recording.names[v] for v in step.operands if v in recording.names}:
            counts[name] = counts.get(name, 0) + repeats(step)
    return {
        name: counts[name] for name in sorted(shared.recurrent | shared.general) if name in counts
    }
