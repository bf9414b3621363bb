"""Every cell of the paper's tables 2 and 3 and of figure 3's curves, and its runs.

The other tables and figures: table 1 is notation; figure 1 shows a rescaling (a test by its name);
the table in figure 3 has the experiment ``kappa-ratios``, all nine cells; figure 4 shows the runs
of table 2 over time.

A cell shows its best group of runs over seeds, chosen by validation among those with the most
seeds.  Where the paper's own method and another one answer, both have a line: "by another method"
is never counted as the paper's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from studies.growth.study import at_full_length

from pathsgd_lab.flags import command_of
from pathsgd_lab.report.footnotes import Footnotes, notes_of
from pathsgd_lab.report.model import Entry, Section, TableData
from pathsgd_lab.report.select import best_group, spread
from pathsgd_lab.report.tables import sources
from pathsgd_lab.run.record import Record
from pathsgd_lab.run.spec import RunSpec
from pathsgd_lab.studies.pages import titled
from pathsgd_lab.studies.study import Study, uses
from pathsgd_lab.sweep.results import Filed

Wanted = Callable[[RunSpec], bool]


@dataclass(frozen=True)
class PaperCell:
    """One cell of the paper, and where its answer is.

    study: the one that holds the runs.
    not_run: why there is no run of ours, where there is none.
    """

    system: str
    printed: str
    """What the paper prints; "cited" behind it where the figure is another paper's."""
    method: str
    study: str
    wanted: Wanted
    not_run: str = "its turn has not come"
    factor: float = 1.0
    digits: int = 2


CITED = "the figure is its authors', cited by the paper"
_HOURS = (
    "a million steps of this length take one to two hours of one core, and its turn has not come"
)
_WAITS = "its turn has not come; it is defined, and `pathsgd reproduce` runs it"
_TOO_SLOW = (
    "each step costs as much as hundreds of a plain net's; not run for as many steps as the others"
)


def _from_the_papers_start(length: int, wanted: Wanted) -> Wanted:
    """Full length from the paper's initial values, until solved or out of seconds; no map."""

    def chosen(spec: RunSpec) -> bool:
        direct = spec.task.length == length and not spec.curriculum.first_length
        start = not spec.system.mean_bias and spec.unbalanced == 1.0
        return (
            direct
            and start
            and wanted(spec)
            and (spec.budget.stop_when_solved or not spec.budget.steps)
        )

    return chosen


def rule_clip(length: int) -> float:
    """The bound of the paper's rule in the reading that learns best (studies/paper-rule)."""
    return 3e-6 if length >= 400 else 3e-5


def _in_sgd_unit(optimiser: str) -> Wanted:
    """Path-SGD's runs in SGD's unit."""
    of_optimiser = uses("rnn_path", optimiser)
    return lambda spec: of_optimiser(spec) and getattr(spec.optimiser, "unit", "") == "sgd"


def _sgd(clip: float) -> Wanted:
    """IRNN with SGD and one bound on the gradient."""
    return lambda spec: uses("irnn", "sgd")(spec) and spec.optimiser.clip == clip  # type: ignore[attr-defined]


def adding_cells(length: int, printed: dict[str, str]) -> list[PaperCell]:
    """The column of one length."""
    rows = [
        ("IRNN", "SGD, gradient ≤ 1", "paper-rule", _sgd(clip=1.0), _HOURS),
        (
            "IRNN",
            "SGD, steps as long as the rule's",
            "paper-rule",
            _sgd(clip=rule_clip(length)),
            _HOURS,
        ),
        ("RNN-Path", "the paper's rule", "paper-rule", uses("rnn_path", "path-sgd-paper"), _HOURS),
        (
            "RNN-Path",
            "by another method: PathAdam",
            "adding",
            uses("rnn_path", "path-adam-relative"),
            _WAITS,
        ),
        ("uRNN", "RMSprop", "adding", uses("urnn", "rmsprop"), _TOO_SLOW),
        ("LSTM", "Adam", "adding", uses("lstm", "adam"), _TOO_SLOW),
        ("np-RNN", "RMSprop", "adding", uses("np_rnn", "rmsprop"), _WAITS),
    ]
    cells = [
        PaperCell(
            system,
            printed[system],
            method,
            folder,
            _from_the_papers_start(length, wanted),
            reason,
            100.0,
        )
        for system, method, folder, wanted, reason in rows
    ]
    larger = "by another method and from a larger start: PathAdam"
    cells.insert(
        4,
        PaperCell(
            "RNN-Path", printed["RNN-Path"], larger, "growth", at_full_length(length), factor=100.0
        ),
    )
    return cells


def smnist_cells() -> list[PaperCell]:
    """The last column of table 2."""
    rows = (
        ("IRNN", "7.1", "SGD", "smnist", uses("irnn", "sgd"), _WAITS),
        (
            "RNN-Path",
            "3.1",
            "the paper's rule",
            "smnist",
            uses("rnn_path", "path-sgd-paper"),
            _WAITS,
        ),
        (
            "RNN-Path",
            "3.1",
            "by another method: PathAdam",
            "smnist",
            uses("rnn_path", "path-adam-relative"),
            _WAITS,
        ),
        (
            "uRNN",
            "4.9, cited",
            "RMSprop",
            "smnist",
            uses("urnn", "rmsprop"),
            f"{CITED}; {_TOO_SLOW}",
        ),
        ("LSTM", "1.8, cited", "Adam", "smnist", uses("lstm", "adam"), CITED),
        ("np-RNN", "3.1, cited", "RMSprop", "smnist", uses("np_rnn", "rmsprop"), CITED),
    )
    return [
        PaperCell(system, paper, method, folder, wanted, reason)
        for system, paper, method, folder, wanted, reason in rows
    ]


def character_cells(folder: str, printed: dict[str, str]) -> list[PaperCell]:
    """A column of table 3."""
    rows: tuple[tuple[str, str, Wanted, str], ...] = (
        ("RNN + smooth ReLU", "Adam", uses("smooth_relu", "adam"), _WAITS),
        ("HF-MRNN", "Hessian-free", uses("mrnn_hf", "hessian-free"), _TOO_SLOW),
        ("TRec, β = 500", AUTHORS_WEIGHT, _weight(500.0), _WAITS),
        ("TRec, β = 500", "weight 0.05: Adam", _weight(0.05), _WAITS),
        ("RNN-ReLU", "Adam", uses("rnn_relu", "adam"), _WAITS),
        ("RNN-tanh", "Adam", uses("rnn_tanh", "adam"), _WAITS),
        ("RNN-Path", "the paper's Path-Adam", _letter(uses("rnn_path", "path-adam-paper")), _WAITS),
        (
            "RNN-Path",
            "by another method: PathAdam, absolute",
            uses("rnn_path", "path-adam"),
            _WAITS,
        ),
        ("LSTM", "Adam", uses("lstm", "adam"), _WAITS),
    )
    return [
        PaperCell(
            system, printed[system], method, _FOLDER_OF.get(method, folder), wanted, reason, 1.0, 3
        )
        for system, method, wanted, reason in rows
        if system in printed
    ]


AUTHORS_WEIGHT = "its authors' weight and start: Adam"
_FOLDER_OF = {AUTHORS_WEIGHT: "norm-stabiliser"}


def _weight(beta: float) -> Wanted:
    """The norm stabiliser at one weight."""
    return lambda spec: uses("norm_stabilizer", "adam")(spec) and spec.system.beta == beta  # type: ignore[attr-defined]


def _letter(wanted: Wanted) -> Wanted:
    """The paper's Path-Adam as it is printed: no clip, kappa at every step, beta2 .999."""
    return lambda spec: (
        wanted(spec)
        and (spec.optimiser.clip, spec.optimiser.refresh_every)  # type: ignore[attr-defined]
        == (0.0, 1)
        and spec.optimiser.beta2 == 0.999  # type: ignore[attr-defined]
    )


def word_cells() -> list[PaperCell]:
    """The curves of figure 3; the paper prints no numbers."""
    rows = (
        ("SGD", "the highest curve", "gradient ≤ 1", uses("rnn_path", "sgd")),
        ("Path-SGD, κ1", "well below SGD", "SGD's unit, direction ≤ 1", _in_sgd_unit("path-sgd")),
        (
            "Path-SGD, κ1 + κ2",
            "as κ1 alone",
            "SGD's unit, direction ≤ 1",
            _in_sgd_unit("path-sgd-both"),
        ),
    )
    return [
        PaperCell(system, paper, method, "ptb-word", wanted, _WAITS, digits=0)
        for system, paper, method, wanted in rows
    ]


def columns() -> dict[str, list[PaperCell]]:
    """Every column of the paper, by its title."""
    adding = {
        100: ("0", "0", "0, cited", "0, cited", "0, cited"),
        400: ("0", "0", "3, cited", "2, cited", "2, cited"),
        750: ("16.7", "0", "16.7, cited", "16.7, cited", "> 2"),
    }
    names = ("IRNN", "RNN-Path", "uRNN", "LSTM", "np-RNN")
    found = {
        f"Table 2, adding problem, T = {length}: 100 MSE": adding_cells(
            length, dict(zip(names, printed, strict=True))
        )
        for length, printed in adding.items()
    }
    found["Table 2, sequential MNIST: error in per cent"] = smnist_cells()
    ptb = {"HF-MRNN": "1.42, cited", "TRec, β = 500": "1.48, cited", "RNN-ReLU": "1.55",
           "RNN-tanh": "1.58",
           "RNN-Path": "1.47", "LSTM": "1.41"}  # fmt: skip
    text8 = {"RNN + smooth ReLU": "1.55, cited", "HF-MRNN": "1.54, cited", "RNN-ReLU": "1.65",
             "RNN-tanh": "1.70",
             "RNN-Path": "1.58", "LSTM": "1.52"}  # fmt: skip
    found["Table 3, Penn Treebank: bits per character"] = character_cells("ptb-char", ptb)
    found["Table 3, text8: bits per character"] = character_cells("text8", text8)
    found["Figure 3, curves: test perplexity on words"] = word_cells()
    return found


HEADER = ("system", "by", "paper", "ours", "units, of the paper's", "steps", "seeds", "command")


def every_cell(filed: Sequence[Filed]) -> list[TableData]:
    """A table per column of the paper."""
    return [_table(title, cells, filed) for title, cells in columns().items()]


def _table(title: str, cells: Sequence[PaperCell], filed: Sequence[Filed]) -> TableData:
    groups = [answer(cell, filed) for cell in cells]
    footnotes = Footnotes()
    lines = []
    for cell, group in zip(cells, groups, strict=True):
        marks = footnotes.marks(notes_of(group, tried(cell, filed), groups)) if group else ""
        lines.append(_line(cell, group, marks))
    return TableData(title, HEADER, tuple(lines), footnotes.below())


def tried(cell: PaperCell, filed: Sequence[Filed]) -> list[Record]:
    """All runs for a cell."""
    return [f.record for f in filed if f.study == cell.study and cell.wanted(f.record.spec)]


def answer(cell: PaperCell, filed: Sequence[Filed]) -> list[Record]:
    """The runs that a cell shows; none where there are none."""
    records = tried(cell, filed)
    return best_group(_longest(records)) if records else []


def _longest(records: Sequence[Record]) -> list[Record]:
    """Those with the largest net and the largest budget: short runs are there to choose a rate."""

    def size(record: Record) -> tuple[float, float, float]:
        budget = record.spec.budget
        return record.parameters, budget.epochs or 0.0, budget.steps or 0

    largest = max(map(size, records))
    return [record for record in records if size(record) == largest]


def _line(cell: PaperCell, group: Sequence[Record], marks: str) -> tuple[Entry, ...]:
    if not group:
        return (
            *map(Entry, (cell.system, cell.method, cell.printed, f"not run: {cell.not_run}")),
            *[Entry("—")] * 4,
        )
    spec, keys = group[0].spec, tuple(record.hash for record in group)
    hidden = spec.system.hidden or spec.task.paper.hidden
    papers = spec.task.paper.gated_hidden if spec.system.name == "lstm" else spec.task.paper.hidden
    steps = sorted({record.steps for record in group})
    value = spread([cell.factor * record.test for record in group]).text(cell.digits)
    return (
        Entry(cell.system),
        Entry(cell.method),
        Entry(cell.printed),
        Entry(
            f"{value} {marks}".strip(),
            keys,
        ),
        Entry(f"{hidden} of {papers}"),
        Entry(f"{steps[0]:,}" if len(steps) == 1 else f"{steps[0]:,} to {steps[-1]:,}"),
        Entry(str(len(group))),
        Entry(f"`{command_of(spec)}`"),
    )


def section(filed: Sequence[Filed]) -> Section:
    """The report's first section: what was run for which cell, and what was not."""
    used = {
        record.hash
        for cells in columns().values()
        for cell in cells
        for record in answer(cell, filed)
    }
    return Section(
        "every-cell",
        "Every cell of the paper",
        "What the paper prints, what we ran for it and at which size; a cell without a run says "
        "why.",
        tables=tuple(every_cell(filed)),
        sources=sources([f for f in filed if f.record.hash in used]),
    )


STUDY = Study(
    name="every-cell",
    title="Every cell of the paper",
    section=section,
    reads=tuple(dict.fromkeys(cell.study for cells in columns().values() for cell in cells)),
    tables={
        "every-cell": lambda filed: titled(every_cell(filed), without=("command",)),
        "every-command": lambda filed: titled(
            every_cell(filed), without=("units, of the paper's", "steps", "seeds")
        ),
    },
)
