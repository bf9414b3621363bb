"""kill -9 at 20 moments, each followed by a resume: the result is that of an undisturbed run."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from pathsgd_lab.run import checkpoint
from pathsgd_lab.run.directory import RunDirectory
from pathsgd_lab.run.record import read_record
from pathsgd_lab.run.spec import default_spec, replace_settings, spec_to_json

KILLS = 20


def test_twenty_kills_change_nothing(tmp_path: Path) -> None:
    spec = replace_settings(
        default_spec("adding", "rnn_path", "path-adam"),
        length=12, valid_size=20, test_size=20, batch_size=4, hidden=8, steps=1800, eval_every=30,
        start_length=4, growth=1.05, promote_below=0.5, decay="linear", refresh_every=7,
    )  # fmt: skip
    words = [json.dumps(spec_to_json(spec)), "1", str(KILLS), tmp_path]
    program = Path(__file__).with_name("kills.py")
    done = subprocess.run([sys.executable, program, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [-signal.SIGKILL] * KILLS + [0, 0], done.stderr
    disturbed, calm = (RunDirectory(tmp_path / name) for name in ("disturbed", "calm"))
    resumed = read_record(disturbed.summary).resumed
    assert KILLS // 2 <= resumed <= KILLS  # a process may be killed before its first checkpoint
    ends = [checkpoint.load_newest(run.path) for run in (disturbed, calm)]
    assert bytes_of(ends[0]["model"]) == bytes_of(ends[1]["model"])
    assert bytes_of(ends[0]["optimiser"]) == bytes_of(ends[1]["optimiser"])
    # The log shows each evaluation once, whatever was logged and then lost.
    logs = [
        [line for line in run.log.read() if line["kind"] == "evaluation"]
        for run in (disturbed, calm)
    ]
    assert [(p["step"], p["metrics"]) for p in logs[0]] == [
        (p["step"], p["metrics"]) for p in logs[1]
    ]


def bytes_of(tree: Any) -> list[Any]:
    tensors: dict[str, torch.Tensor] = {}
    structure = checkpoint.flatten(tree, tensors)
    return [json.dumps(structure), *(t.numpy().tobytes() for t in tensors.values())]
