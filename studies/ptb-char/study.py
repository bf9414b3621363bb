"""Table 3, left column: Penn Treebank by characters, windows of 50."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from studies.text8.characters import (
    CLIPPED,
    PAPER_RATES,
    TO_THE_LETTER,
    CharacterRow,
    CharacterTable,
)

from pathsgd_lab.run.record import Record
from pathsgd_lab.run.spec import RunSpec
from pathsgd_lab.studies.study import (
    Scale,
    Study,
    at_best_rate,
    cells,
    over,
    run,
    seed_by_seed,
)
from pathsgd_lab.sweep.cells import RunCell

LARGE_RATES = (2e-3, 1e-3)
RATES, PATH_RATES = (1e-2, 5e-3, 2e-3), (5e-3, 3e-3, 5e-4)
STABILISER = (("recurrent", "paper"), ("beta", 0.05))
"""From the identity and with beta = 500, as its authors have it, Adam explodes or learns next to
nothing in an epoch (docs/what-reproduces.md has the figures)."""

TABLE = CharacterTable(
    task="ptb_char",
    name="ptb-char",
    title="Penn Treebank by characters",
    paper_ref="Table 3, PTB",
    rows=(
        CharacterRow("RNN-ReLU", "rnn_relu", "adam", RATES, 1.55),
        CharacterRow("RNN-tanh", "rnn_tanh", "adam", (5e-3, 2e-3, 1e-3, 5e-4), 1.58),
        CharacterRow("RNN-Path, PathAdam", "rnn_path", "path-adam-relative", PATH_RATES, 1.47),
        CharacterRow("RNN-Path, absolute", "rnn_path", "path-adam", RATES, 1.47,
                     settings=(("refresh_every", 10),)),
        CharacterRow(
            "RNN-Path, paper's Path-Adam", "rnn_path", "path-adam-paper", PAPER_RATES, 1.47,
            told_by=TO_THE_LETTER
        ),
        CharacterRow(
            "RNN-Path, grad / kappa to a clipped Adam", "rnn_path", "path-adam-paper",
            (*RATES, 5e-4), None,
            told_by=CLIPPED,
        ),
        CharacterRow("RNN + norm stabiliser", "norm_stabilizer", "adam", RATES, 1.48,
                     settings=STABILISER),
        CharacterRow("RNN + smooth ReLU", "smooth_relu", "adam", RATES, None),
        CharacterRow("LSTM", "lstm", "adam", (5e-2, 2e-2, 1e-2, 5e-3), 1.41, gated=True),
    ),
    sizes={
        "paper": {"hidden": 2048, "gated_hidden": 1024, "grid": {"epochs": 1.0},
                  "final": {"epochs": 40.0},
                  "seeds": 3, "eval_every": 1567},
        "laptop": {"hidden": 512, "gated_hidden": 256, "grid": {"epochs": 1.0},
                   "final": {"epochs": 8.0},
                   "seeds": 3, "eval_every": 1567},
        "smoke": {"hidden": 6, "gated_hidden": 3, "grid": {"steps": 4}, "final": {"steps": 6},
                  "seeds": 2,
                  "eval_every": 4, "limit": 1500, "window": 6, "batch_size": 4},
    },
)  # fmt: skip


def large_stage(scale: Scale, records: Sequence[Record]) -> list[RunCell]:
    """RNN-Path and its nearest rival with the paper's 2048 units: the same two rates, one seed."""
    return cells(large(), TABLE.paper_ref) if scale == "laptop" else []


def large() -> list[RunSpec]:
    """The paper's size, five epochs, about an hour of one core each."""
    size: dict[str, Any] = {
        "hidden": 2048,
        "epochs": 5.0,
        "seconds": 7200.0,
        "decay": "linear",
        "eval_every": 500,
    }
    path = run("ptb_char", "rnn_path", "path-adam", **size, refresh_every=10)
    return [
        *over(path, lr=LARGE_RATES),
        *over(run("ptb_char", "rnn_relu", "adam", **size), lr=LARGE_RATES),
    ]


def large_seeds_stage(scale: Scale, records: Sequence[Record]) -> list[RunCell]:
    """The better rate of each on two more seeds."""
    best = at_best_rate(large(), records) if scale == "laptop" else []
    return cells(seed_by_seed(best, (1, 2)), TABLE.paper_ref)


def others_stage(scale: Scale, records: Sequence[Record]) -> list[RunCell]:
    """The paper's other systems at its size, at the small ones' best rates, for as many steps.

    The norm stabiliser with its authors' weight trains at a tenth of the rates; the Hessian-free
    net makes far fewer steps in the same time, and has the small size only.
    """
    if scale != "laptop":
        return []
    size: dict[str, Any] = {"epochs": 5.0, "seconds": 7200.0, "decay": "linear", "eval_every": 500}
    wide = {**size, "hidden": 2048}
    tanh = over(run("ptb_char", "rnn_tanh", "adam", **wide), lr=(1e-3, 5e-4))
    gated = over(run("ptb_char", "lstm", "adam", **size, hidden=1024), lr=(1e-2, 5e-3))
    stabilised = over(
        run("ptb_char", "norm_stabilizer", "adam", **wide, recurrent="paper", beta=0.05),
        lr=LARGE_RATES,
    )
    authors = run(
        "ptb_char", "norm_stabilizer", "adam", **{**size, "epochs": 1.0}, hidden=512, beta=500.0
    )
    free = run(
        "ptb_char", "mrnn_hf", "hessian-free", hidden=512, steps=200, seconds=7200.0, eval_every=20
    )
    return cells(
        [*tanh, *gated, *stabilised, *over(authors, lr=(2e-4, 5e-5)), free], TABLE.paper_ref
    )


STUDY = Study(
    name="ptb-char",
    title="Character-level language model on the Penn Treebank",
    paper_ref=TABLE.paper_ref,
    duration={"paper": "days on many cores", "laptop": "a day on two cores", "smoke": "seconds"},
    stages=(
        TABLE.first_stage,
        TABLE.second_stage,
        large_stage,
        large_seeds_stage,
        others_stage,
        TABLE.third_stage,
    ),
    section=TABLE.section,
)
