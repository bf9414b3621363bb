"""Table 3, right column: text8 by characters, windows of 180.

At laptop scale every system sees the same number of characters: 2.3 million in the grid of rates,
11.5 million in the final run (64 rows of 180 characters a step).
"""

from __future__ import annotations

from studies.text8.characters import (
    PAPER_RATES,
    TO_THE_LETTER,
    CharacterRow,
    CharacterTable,
)

from pathsgd_lab.studies.study import Study

RATES = (2e-2, 1e-2, 5e-3, 2e-3)

TABLE = CharacterTable(
    task="text8",
    name="text8",
    title="text8 by characters",
    paper_ref="Table 3, text8",
    rows=(
        CharacterRow("RNN-ReLU", "rnn_relu", "adam", RATES, 1.65),
        CharacterRow("RNN-tanh", "rnn_tanh", "adam", (5e-3, 2e-3, 1e-3, 5e-4), 1.70),
        CharacterRow("RNN-Path, absolute", "rnn_path", "path-adam", RATES, 1.58,
                     settings=(("refresh_every", 10),)),
        CharacterRow(
            "RNN-Path, paper's Path-Adam", "rnn_path", "path-adam-paper", PAPER_RATES, 1.58,
            told_by=TO_THE_LETTER
        ),
        CharacterRow("RNN + smooth ReLU", "smooth_relu", "adam", RATES, 1.55),
        CharacterRow("LSTM", "lstm", "adam", (5e-2, 2e-2, 1e-2, 5e-3), 1.52, gated=True),
    ),
    sizes={
        "paper": {"hidden": 2048, "gated_hidden": 1024, "grid": {"epochs": 0.1},
                  "final": {"epochs": 5.0},
                  "seeds": 3, "eval_every": 2000},
        "laptop": {"hidden": 512, "gated_hidden": 256, "grid": {"steps": 200},
                   "final": {"steps": 1000},
                   "seeds": 3, "eval_every": 200, "eval_limit": 40},
        "smoke": {"hidden": 6, "gated_hidden": 3, "grid": {"steps": 4}, "final": {"steps": 6},
                  "seeds": 2,
                  "eval_every": 4, "limit": 2000, "window": 6, "batch_size": 4},
    },
    next_lower=False,
)  # fmt: skip

STUDY = Study(
    name="text8",
    title="Character-level language model on text8",
    paper_ref=TABLE.paper_ref,
    duration={
        "paper": "days on many cores",
        "laptop": "an hour and a half on two cores",
        "smoke": "seconds",
    },
    stages=(TABLE.first_stage, TABLE.second_stage, TABLE.third_stage),
    section=TABLE.section,
)
