"""kill -9 at random moments, twenty times, then go on: the end must be that of a run nobody disturbed, bit for bit."""

from __future__ import annotations

import json
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

# Imports once and forks a real process per sitting: importing torch twenty times would take most of a minute.
FORKER = """
import json, os, random, signal, sys, time
from pathlib import Path
from pathsgd_lab.run.spec import spec_from_json
from pathsgd_lab.run.provenance import commit
from pathsgd_lab.run.train import train
import torch._dynamo  # torch's optimisers import it when the first one is made, which takes a second

commit()
spec, kills, seed = spec_from_json(json.loads(sys.argv[1])), int(sys.argv[2]), int(sys.argv[3])
disturbed, calm = Path(sys.argv[4]), Path(sys.argv[5])
moments = random.Random(seed)

def sitting(directory):
    child = os.fork()
    if child == 0:
        status = 1
        try:
            train(spec, directory, resume=True, checkpoint_seconds=0.0)
            status = 0
        finally:
            os._exit(status)
    return child

def wait_for_progress(before):
    while set(disturbed.glob("checkpoint-*.safetensors")) == before:
        time.sleep(0.001)

ended = []
for kill in range(kills):
    before = set(disturbed.glob("checkpoint-*.safetensors"))
    child = sitting(disturbed)
    if kill % 2:  # every other time after some progress, however slow the machine
        wait_for_progress(before)
        time.sleep(moments.uniform(0.0, 0.03))
    else:
        time.sleep(moments.uniform(0.0, 0.15))
    os.kill(child, signal.SIGKILL)
    ended.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
for directory in (disturbed, calm):
    ended.append(os.waitstatus_to_exitcode(os.waitpid(sitting(directory), 0)[1]))
print(json.dumps(ended))
"""


def test_twenty_kills_change_nothing(tmp_path: Path) -> None:
    spec = replace_settings(
        default_spec("adding", "rnn_path", "path-adam"),
        length=12, valid_size=20, test_size=20, batch_size=4, hidden=8, steps=1800, eval_every=30,
        start_length=4, growth=1.05, promote_below=0.5, decay="linear", refresh_every=7,
    )  # fmt: skip
    words = [
        json.dumps(spec_to_json(spec)),
        str(KILLS),
        "1",
        str(tmp_path / "disturbed"),
        str(tmp_path / "calm"),
    ]
    done = subprocess.run(
        [sys.executable, "-c", FORKER, *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    # Every kill met a living process: -9 is its exit code, 0 would mean that the run was over before.
    assert json.loads(done.stdout) == [-9] * KILLS + [0, 0], done.stderr
    disturbed, calm = (RunDirectory(tmp_path / name) for name in ("disturbed", "calm"))
    resumed = read_record(disturbed.summary).resumed
    assert KILLS // 2 <= resumed <= KILLS  # a sitting may be killed before its first checkpoint
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
