"""The table behind PathAdam's default learning rate."""

from __future__ import annotations

import inspect
from importlib import import_module

import torch
from studies.compare.contest import CONTENDERS

from pathsgd import PathAdam
from pathsgd_lab.studies import Studies

STUDIES = Studies()
CONTENDER, RATES, default_rate_table = (
    getattr(import_module("studies.default-rate.study"), name)
    for name in ("CONTENDER", "RATES", "default_rate_table")
)


def test_the_default_is_among_the_rates_and_is_the_contender_s() -> None:
    model = torch.nn.Linear(1, 1)
    default = PathAdam(model).param_groups[0]["lr"]
    assert default in RATES and default == CONTENDERS[CONTENDER].rate
    assert PathAdam(model, metric="paper").param_groups[0]["lr"] == 1e-3
    assert inspect.signature(PathAdam).parameters["lr"].default is None


def test_the_default_reaches_more_targets_with_no_more_spikes_than_adam_s_rate() -> None:
    table = default_rate_table(STUDIES.filed("default-rate"))
    assert table.columns[1:] == tuple(f"{rate:g}" for rate in RATES)
    rows = {row[0].text: [entry.text for entry in row[1:]] for row in table.rows}
    for start in ("balanced", "badly scaled"):
        low, middle, _ = (float(text) for text in rows[f"comparison, {start}: mean excess in %"])
        assert middle < low
        for what, better in (("targets reached", 1), ("spikes", -1)):
            counts = [int(text.split(" of ")[0]) for text in rows[f"comparison, {start}: {what}"]]
            assert better * counts[1] >= better * counts[0]
    solved = [rows[name] for name in rows if name.endswith(": solved") and "T = 100," in name]
    assert len(solved) == 2 and all(text == "5 of 5" for row in solved for text in row)


def test_without_records_the_table_is_empty() -> None:
    assert default_rate_table([]).rows == ()
