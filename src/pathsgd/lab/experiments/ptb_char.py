"""Table 3, left column: Penn Treebank by characters, windows of 50."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pathsgd.lab.experiments.base import Experiment, Scale, cells, over, run
from pathsgd.lab.experiments.characters import TEXT_GROWTH, CharacterRow, CharacterTable
from pathsgd.lab.run.record import Record
from pathsgd.lab.sweep.cells import RunCell

RATES, PATH_RATES = (1e-2, 5e-3, 2e-3), (5e-3, 3e-3, 5e-4)
STABILISER = (("recurrent", "paper"), ("beta", 0.05))
"""From the identity and with beta = 500, as its authors have it, Adam explodes or learns next to nothing in an epoch
(docs/what-reproduces.md has the figures)."""

TABLE = CharacterTable(
    task="ptb_char",
    name="ptb-char",
    title="Penn Treebank by characters",
    paper_ref="Table 3, PTB",
    rows=(
        CharacterRow("RNN-ReLU", "rnn_relu", "adam", RATES, 1.55),
        CharacterRow("RNN-tanh", "rnn_tanh", "adam", (5e-3, 2e-3, 1e-3, 5e-4), 1.58),
        CharacterRow("RNN-Path, PathAdam", "rnn_path", "path-adam", PATH_RATES, 1.47, settings=TEXT_GROWTH),
        CharacterRow("RNN-Path, absolute", "rnn_path", "path-adam-absolute", RATES, 1.47, settings=TEXT_GROWTH),
        CharacterRow("RNN-Path, paper's Path-Adam", "rnn_path", "path-adam-paper", (*RATES, 5e-4), 1.47),
        CharacterRow("RNN + norm stabiliser", "norm_stabilizer", "adam", RATES, 1.48, settings=STABILISER),
        CharacterRow("LSTM", "lstm", "adam", (5e-2, 2e-2, 1e-2, 5e-3), 1.41, gated=True),
    ),
    sizes={
        "paper": {"hidden": 2048, "gated_hidden": 1024, "grid": {"epochs": 1.0}, "final": {"epochs": 40.0},
                  "seeds": 3, "eval_every": 1567},
        "laptop": {"hidden": 512, "gated_hidden": 256, "grid": {"epochs": 1.0}, "final": {"epochs": 8.0},
                   "seeds": 3, "eval_every": 1567},
        "smoke": {"hidden": 6, "gated_hidden": 3, "grid": {"steps": 4}, "final": {"steps": 6}, "seeds": 2,
                  "eval_every": 4, "limit": 1500, "window": 6, "batch_size": 4},
    },
)  # fmt: skip


def large_stage(scale: Scale, records: Sequence[Record]) -> list[RunCell]:
    """At laptop scale, RNN-Path and its nearest rival with the paper's 2048 units, about an hour of one core each.

    Too long for a grid: RNN-Path has one rate, its rival two.
    """
    if scale != "laptop":
        return []
    large: dict[str, Any] = {"hidden": 2048, "epochs": 5.0, "seconds": 7200.0, "decay": "linear", "eval_every": 500}
    path = run("ptb_char", "rnn_path", "path-adam-absolute", lr=2e-3, **large, **dict(TEXT_GROWTH))
    plain = run("ptb_char", "rnn_relu", "adam", **large)
    return cells([path, *over(plain, lr=(1e-3, 2e-3))], TABLE.paper_ref)


PTB_CHAR = Experiment(
    name="ptb-char",
    title="Character-level language model on the Penn Treebank",
    paper_ref=TABLE.paper_ref,
    duration={"paper": "days on many cores", "laptop": "six hours on two cores", "smoke": "seconds"},
    stages=(TABLE.first_stage, TABLE.second_stage, large_stage, TABLE.third_stage),
    section=TABLE.section,
    data_set="ptb",
)
