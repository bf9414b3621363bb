"""Every example runs, at a small size: one command each, and what it promises at its end."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
HARNESSES = {
    "with_accelerate",
    "with_lightning",
    "with_neurogym",
    "with_transformers",
}  # `make harness`
SHARED = {"task", "mnist"}
COMMANDS: dict[str, tuple[str, str]] = {
    "plain": ("", "epoch 3: loss"),
    "ddp": ("", "loss"),
    "irnn": (
        "--epochs 1 --hidden 4 --subsample 7 --valid-size 10 --run-dir run",
        "finished: test error",
    ),
    "text": ("--steps 3 --units 8 --length 8 --characters 20 --text text.txt", "bits a character"),
    "export": ("--epochs 1 --out out.onnx", "out.onnx: "),
    "pruning": ("--epochs 1 --seeds 1 --out out.json", "record: out.json"),
    "quantisation": ("--epochs 1 --seeds 1 --calibration 20 --out out.json", "record: out.json"),
}


def run(name: str, words: list[str], place: Path, data: Path) -> str:
    (place / "text.txt").write_text("to be or not to be, that is the question\n" * 20)
    script = [str(EXAMPLES / f"{name}.py"), *words]
    if name == "ddp":
        script = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *script]
    environment = {
        "PATH": "/usr/bin:/bin",
        "PATHSGD_DATA": str(data),
        "OMP_NUM_THREADS": "1",
        "PYTHONWARNINGS": "ignore",
    }
    environment["PYTHONPATH"] = ":".join(sys.path)
    done = subprocess.run(
        [sys.executable, *script],
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_example_is_run() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(COMMANDS) | HARNESSES | SHARED


@pytest.mark.parametrize("name", COMMANDS)
def test_an_example_runs(name: str, tmp_path: Path, tiny_data: Path) -> None:
    words, promise = COMMANDS[name]
    assert promise in run(name, words.split(), tmp_path, tiny_data)
    for word in words.split():
        if word.startswith("out."):
            assert (tmp_path / word).stat().st_size > 500


def committed(name: str) -> list[dict[str, Any]]:
    record = json.loads((EXAMPLES / "records" / f"{name}.json").read_text())
    assert (
        record["command"] == f"python examples/{name}.py" and record["settings"]["images"] == 60_000
    )
    rows: list[dict[str, Any]] = record["results"]
    return rows


def test_what_the_page_on_pruning_says_of_its_record() -> None:
    curves = {
        (r["net"], r["seed"], r["score"], r["scaling"]): r["accuracy"] for r in committed("pruning")
    }
    assert len(curves) == 16
    for (net, seed, score, scaling), rescaled in curves.items():
        if scaling == "rescaled":
            apart = [abs(a - b) for a, b in zip(rescaled, curves[net, seed, score, "as trained"])]
            assert max(apart) < 1e-3 if score == "path share" else max(apart) > 0.7


def test_what_the_page_on_quantisation_says_of_its_record() -> None:
    rows = committed("quantisation")
    assert len(rows) == 24
    for row in rows:
        *_, before, last = row["errors"].values()
        if row["scaling"] != "rescaled":
            assert row["float"] - row["int8"] < 3e-3 and last < 0.02
        else:
            assert last > 0.05 and last > before
            if row["weights"] == "one scale a tensor":
                assert row["float"] - row["int8"] > 0.01
