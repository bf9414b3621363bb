"""A report on a model: its operations, how they carry paths, and its parameters."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from pathsgd.distributed.sharded import whole_parameters
from pathsgd.errors import UnsupportedOperation
from pathsgd.network.node_spaces import NodeSpaces
from pathsgd.network.nodes import spaces_of
from pathsgd.network.record.record import Output, record
from pathsgd.network.sharing import parameters_shared_along_paths, uses, views
from pathsgd.network.tape import Recording


@dataclass(frozen=True)
class Row:
    """Operations of one kind in one place: rule, parameters, number of occurrences."""

    operation: str
    where: str
    rule: str
    parameters: tuple[str, ...]
    times: int


@dataclass(frozen=True)
class Explanation:
    """The support report of one model; print it."""

    model: str
    rows: list[Row]
    problem: UnsupportedOperation | None = None
    """The operation that no rule covers, where there is one; the rows are those before it."""
    shared: dict[str, str] = field(default_factory=dict)
    """Parameters used more than once: how often, and whether along one path."""
    unreached: list[str] = field(default_factory=list)
    """Parameters on no path to the output."""
    pinned: dict[str, str] = field(default_factory=dict)
    """Parameters that lead to hidden units which cannot be rescaled, and what fixes those."""
    free_nodes: dict[str, int] = field(default_factory=dict)
    """How many free nodes (units that can be rescaled) first appear at each parameter."""

    @property
    def supported(self) -> bool:
        return self.problem is None

    def __str__(self) -> str:
        return "\n".join([self._title(), "", *self._table(), "", *self._notes()])

    def _title(self) -> str:
        verdict = "every operation has a rule" if self.supported else "not supported"
        return f"{self.model}: {verdict}"

    def _table(self) -> list[str]:
        cells = [("operation", "where", "rule", "parameters")]
        for row in self.rows:
            times = f" x {row.times}" if row.times > 1 else ""
            cells.append((row.operation + times, row.where, row.rule, ", ".join(row.parameters)))
        widths = [max(len(line[k]) for line in cells) for k in range(3)]
        lines = [
            "  ".join([*(text.ljust(w) for text, w in zip(line, widths)), line[3]]).rstrip()
            for line in cells
        ]
        return [lines[0], "-" * len(lines[0]), *lines[1:]]

    def _notes(self) -> list[str]:
        if self.problem is not None:
            return [
                f"stopped at `{self.problem.operation}` in {self.problem.where}",
                f"because {self.problem.advice}",
            ]
        notes = [f"shared      {name}: {how}" for name, how in self.shared.items()]
        notes += [f"no path     {name} reaches no output: kappa is 0" for name in self.unreached]
        fixed = self.pinned.items()
        notes += [f"pinned      {name}: its units are fixed by {what}" for name, what in fixed]
        where = ", ".join(f"{count} at {name}" for name, count in self.free_nodes.items())
        count = sum(self.free_nodes.values())
        found = f"{count} ({where})" if count else "none: no unit can be rescaled"
        return [*notes, f"free nodes  {found}"]


def explain(model: nn.Module, *inputs: Any, output: Output = None) -> Explanation:
    """Every operation of a model with its rule, or why the model is refused.

    Also shared and unreached parameters, and free nodes.

    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh())
    >>> print(explain(model, torch.ones(1, 2)))  # doctest: +ELLIPSIS
    Sequential: not supported
    <BLANKLINE>
    operation  where       rule                                         parameters
    ------------------------------------------------------------------------------
    linear     module '0'  a linear map: squared weights, squared bias  0.weight, 0.bias
    <BLANKLINE>
    stopped at `torch.tanh` in module '1'
    because it saturates, so it is not positively homogeneous and node-wise rescaling does not...
    """
    title = type(model).__name__
    try:
        recording = record(model, inputs, output)
    except UnsupportedOperation as problem:
        return Explanation(title, _rows(problem.recording or Recording()), problem)
    parameters = whole_parameters(model)
    spaces = spaces_of(recording, parameters)
    return Explanation(
        title,
        _rows(recording),
        shared=_shared(recording),
        unreached=[name for name in parameters if name not in recording.reached],
        pinned={
            name: f"`{step.operation}` in {step.where}" for name, step in spaces.pinned.items()
        },
        free_nodes=_free_nodes(spaces),
    )


def _rows(recording: Recording) -> list[Row]:
    """The steps, those alike counted together, in the order of their first appearance."""
    names = views(recording)
    found: Counter[tuple[str, str, str, tuple[str, ...]]] = Counter()
    for step in recording.steps:
        taken = tuple(name for v in step.operands for name in names.get(v, ()))
        found[step.operation, step.where, step.rule.summary, taken] += 1
    return [Row(*key, times) for key, times in found.items()]


def _shared(recording: Recording) -> dict[str, str]:
    along_paths = parameters_shared_along_paths(recording)
    found = {}
    for name, count in uses(recording).items():
        if name in along_paths.recurrent:
            where = "along one path, as a recurrent matrix"
            found[name] = f"{count} uses {where}: kappa2 in closed form"
        elif name in along_paths.general:
            found[name] = f"{count} uses, some along one path: kappa2 by automatic differentiation"
        elif count > 1:
            found[name] = f"{count} uses, never twice on one path: kappa2 is 0"
    return found


def _free_nodes(spaces: NodeSpaces) -> dict[str, int]:
    return dict(Counter(name.rpartition("[")[0] for name in spaces.names))
