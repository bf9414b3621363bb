"""Which parameters some path uses more than once: only these have a kappa2.

Every value has the set of parameters that lie on paths into it. A product of two values whose sets
overlap puts one parameter on a path twice. The answer is for whole parameters: it may contain too
many, never too few.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pathsgd.network.rules.base import products, repeats
from pathsgd.network.tape import Kind, Recording, Value


@dataclass
class Shared:
    """Parameters that some path uses more than once.

    recurrent: only as the recurrent matrix of RNN layers; kappa2 has a closed form.
    general: in any other way; kappa2 needs automatic differentiation.
    """

    recurrent: set[str] = field(default_factory=set)
    general: set[str] = field(default_factory=set)


def parameters_shared_along_paths(recording: Recording) -> Shared:
    """Parameters that some path uses more than once."""
    names = recording.names
    upstream = {value: frozenset([name]) for value, name in names.items()}
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
        upstream.update(dict.fromkeys(step.made, everything))
    shared.recurrent -= shared.general
    return shared


def views(recording: Recording) -> dict[Value, list[str]]:
    """Parameters and values made by moving their entries, with the parameters' names."""
    viewed = {value: [name] for name, value in recording.parameters.items()}
    for step in recording.steps:
        if step.rule.moves and all(v in viewed for v in step.operands):
            names = sorted({name for v in step.operands for name in viewed[v]})
            viewed.update({v: names for v in step.made if v.kind is Kind.WEIGHT})
    return viewed


def uses(recording: Recording) -> dict[str, int]:
    """How often each parameter is used, a recurrent layer's once per time step; moves are none."""
    viewed = views(recording)
    counts = dict.fromkeys(recording.parameters, 0)
    for step in recording.steps:
        if any(v in viewed for v in step.made):
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
    return {n: counts[n] for n in sorted(shared.recurrent | shared.general) if n in counts}
