"""Figure 3, table on the left: the size of kappa2 beside kappa1, ||kappa2(W_rec)|| / ||kappa1(W_rec)||.

A word-level net with 10,000 words in and out, H units, outputs at all of T steps, weights from U[-0.1, 0.1].  The
paper's convention counts each pair of uses of a weight once; the derivative counts it four times ("exact").  Beside
the uniform start, the identity, at which the paper's other experiments begin.  Ratios after training come from the
records of ``ptb-word``, which measure them at every evaluation.

Each figure is computed twice, by the library and by the slow reference, on the same weights.
"""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from pathsgd.kappa import kappa
from pathsgd.lab.record import Machine, RecordError, commit, machine, to_json, versions, write_text
from pathsgd.lab.report.model import Cell, Section, Source, TableData
from pathsgd.lab.report.select import Filed, spread
from pathsgd.lab.spec import canonical_json
from pathsgd.lab.specs.base import Experiment, Scale
from pathsgd.lab.systems import RnnPathSystem
from pathsgd.lab.systems.plain import RecurrentNet
from pathsgd.lab.tasks import PtbWordTask
from pathsgd.reference.ratios import PAPER
from pathsgd.reference.rnn import SquaredRNN

KIND = "kappa-ratios"
Start = Literal["uniform", "identity"]


@dataclass(frozen=True)
class RatioSpec:
    """One random net, measured at several numbers of steps."""

    hidden: int
    seed: int
    start: Start
    steps: tuple[int, ...]
    vocabulary: int


@dataclass(frozen=True)
class Ratio:
    """The ratio at one number of steps; the reference's figure beside the library's."""

    steps: int
    exact: float
    paper: float
    reference_exact: float
    diagonal: float
    """Mean over units of kappa2 / kappa1 on the diagonal, exact convention."""


@dataclass(frozen=True)
class RatioRecord:
    """What a cell leaves behind."""

    spec: RatioSpec
    ratios: tuple[Ratio, ...]
    machine: Machine
    versions: dict[str, str]
    commit: str
    started: str
    outcome: Literal["finished"] = "finished"

    @property
    def hash(self) -> str:
        """The cell's key."""
        return RatioCell(self.spec).key


@dataclass(frozen=True)
class RatioCell:
    """The measurement of one net as a cell of a sweep."""

    spec: RatioSpec

    @property
    def key(self) -> str:
        """sha256 of the spec."""
        return hashlib.sha256(canonical_json([KIND, to_json(self.spec)]).encode()).hexdigest()

    @property
    def slug(self) -> str:
        """Readable and unique."""
        return f"{KIND}-{self.spec.start}-h{self.spec.hidden}-seed{self.spec.seed}-{self.key[:10]}"

    def run(self, work: Path, result: Path, data_dir: Path | None) -> str:
        """Measure and write."""
        started = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        ratios = tuple(measure(self.spec, steps) for steps in self.spec.steps)
        record = RatioRecord(self.spec, ratios, machine(1), versions(), commit(), started)
        write_text(result, json.dumps({"kind": KIND, "hash": self.key, **to_json(record)}, indent=1) + "\n")
        return record.outcome


def measure(spec: RatioSpec, steps: int) -> Ratio:
    """Both ways, on the same weights."""
    task = PtbWordTask(window=steps, vocabulary=spec.vocabulary)
    system = RnnPathSystem(hidden=spec.hidden, recurrent=spec.start, recurrent_range=0.1, others_range=0.1)
    net = system.build(task, spec.seed)
    assert isinstance(net, RecurrentNet)
    name = "rnn.weight_hh_l0"
    first, second = (
        kappa(net, task.example_inputs(), terms=terms, relative=True, output=0)[name] for terms in ("first", "second")
    )
    quarter = kappa(net, task.example_inputs(), terms="second", convention="paper", relative=True, output=0)[name]
    w_in = net.input_matrix.detach().double().numpy()
    slow = SquaredRNN.from_weights(
        w_in.T if w_in.shape[0] == spec.vocabulary else w_in,
        net.rnn.weight_hh_l0.detach().double().numpy(),
        net.readout.weight.detach().double().numpy(),
        steps,
        every_step=True,
    )
    slow_first, slow_second = slow.kappa1_recurrent(), slow.kappa2_recurrent("exact")
    return Ratio(
        steps,
        exact=float(second.norm() / first.norm()),
        paper=float(quarter.norm() / first.norm()),
        reference_exact=float((slow_second**2).sum() ** 0.5 / (slow_first**2).sum() ** 0.5),
        diagonal=float((second.diagonal() / first.diagonal()).mean()),
    )


def read_ratio_record(path: Path) -> RatioRecord:
    """The record in a file."""
    try:
        content: dict[str, Any] = json.loads(path.read_text("utf-8"))
        if content.pop("kind") != KIND:
            raise RecordError("it is of another kind")
        del content["hash"]
        settings = content.pop("spec")
        spec = RatioSpec(**{**settings, "steps": tuple(settings["steps"])})
        ratios = tuple(Ratio(**ratio) for ratio in content.pop("ratios"))
        place = Machine(**content.pop("machine"))
        return RatioRecord(spec=spec, ratios=ratios, machine=place, **content)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecordError) as error:
        raise RecordError(f"{path} cannot be read as a record of ratios: {error}") from error


SIZES: dict[Scale, dict[str, Any]] = {
    "paper": {"hidden": (100, 200, 400), "steps": (10, 20, 40), "seeds": range(5), "vocabulary": 10_000},
    "laptop": {"hidden": (100, 200, 400), "steps": (10, 20, 40), "seeds": range(5), "vocabulary": 10_000},
    "smoke": {"hidden": (5, 8), "steps": (4, 6), "seeds": range(2), "vocabulary": 30},
}


def stage(scale: Scale, records: Sequence[Any]) -> list[RatioCell]:
    """Every net."""
    size = SIZES[scale]
    starts: tuple[Start, ...] = ("uniform", "identity")
    return [
        RatioCell(RatioSpec(hidden, seed, start, size["steps"], size["vocabulary"]))
        for start in starts
        for hidden in size["hidden"]
        for seed in size["seeds"]
    ]


def section(filed: Sequence[Filed]) -> Section:
    """A table for each start."""
    tables = tuple(
        table(start, [f for f in filed if f.record.spec.start == start]) for start in ("uniform", "identity")
    )
    return Section(
        KIND,
        "The second term of kappa beside the first",
        "||kappa2(W_rec)|| / ||kappa1(W_rec)|| of a word-level net. The paper prints ratios in a convention that "
        "counts each pair of uses of a weight once; the second derivative of gamma^2 counts it four times.",
        tables=tables,
        sources=tuple(source(f) for f in filed),
    )


def table(start: str, filed: Sequence[Filed]) -> TableData:
    """One start: a row per H and T."""
    shapes = sorted({(f.record.spec.hidden, ratio.steps) for f in filed for ratio in f.record.ratios})
    rows = []
    for hidden, steps in shapes:
        chosen = [f for f in filed if f.record.spec.hidden == hidden]
        ratios = [ratio for f in chosen for ratio in f.record.ratios if ratio.steps == steps]
        keys = tuple(f.record.hash for f in chosen)
        printed = PAPER.get(hidden, {}).get(steps) if start == "uniform" else None
        ours = spread([ratio.paper for ratio in ratios])
        error = max(abs(ratio.exact / ratio.reference_exact - 1.0) for ratio in ratios)
        rows.append(
            (
                Cell(f"H = {hidden}, T = {steps}"),
                Cell("—" if printed is None else f"{printed:.5f}"),
                Cell(ours.text(5), keys),
                Cell("—" if printed is None else f"{ours.mean - printed:+.5f}", keys),
                Cell(spread([ratio.exact for ratio in ratios]).text(5), keys),
                Cell(spread([ratio.diagonal for ratio in ratios]).text(4), keys),
                Cell(str(len(ratios))),
                Cell(f"{error:.0e}"),
                Cell("pathsgd reproduce kappa-ratios"),
            )
        )
    columns = (
        "net", "paper", "ours, paper's convention", "difference", "ours, exact", "exact, on the diagonal", "seeds",
        "library against reference", "command",
    )  # fmt: skip
    return TableData(f"W_rec {start}", columns, tuple(rows))


def source(filed: Filed) -> Source:
    """A record as the page shows it."""
    record: RatioRecord = filed.record
    facts = [("net", ", ".join(f"{k} {v}" for k, v in asdict(record.spec).items()))]
    facts += [(f"T = {r.steps}", f"exact {r.exact:.6g}, paper's {r.paper:.6g}") for r in record.ratios]
    facts += [("machine", record.machine.cpu), ("commit", record.commit or "unknown"), ("started", record.started)]
    return Source(record.hash, filed.path, "pathsgd reproduce kappa-ratios", tuple(facts))


KAPPA_RATIOS = Experiment(
    name=KIND,
    title="Size of kappa2 beside kappa1",
    paper_ref="Figure 3, table",
    duration={"paper": "two minutes", "laptop": "two minutes on two cores", "smoke": "seconds"},
    stages=(stage,),
    section=section,
    read=read_ratio_record,
)
