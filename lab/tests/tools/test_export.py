"""Export: the ONNX file computes what the model does, for any batch and any promised length."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch

from pathsgd_lab import cli
from pathsgd_lab.errors import RunError
from pathsgd_lab.run.record import read_record
from pathsgd_lab.systems import SYSTEMS
from pathsgd_lab.tasks import (
    AddingTask,
    CopyTask,
    PtbCharTask,
    PtbWordTask,
    SequentialMnistTask,
    Task,
)
from pathsgd_lab.tools.export import export, random_inputs, trained_model

FIXED_LENGTH = (
    "smooth_relu",
    "mrnn_hf",
    "ctrnn",
    "mlp",
    "autoencoder",
    "cnn",
)  # step by step, or as a whole
TASKS: list[Task] = [
    AddingTask(length=7),
    CopyTask(lag=2),
    PtbCharTask(window=6),
    PtbWordTask(window=5, vocabulary=300),
    SequentialMnistTask(subsample=7),
]
FITTING = [(s, t) for s in SYSTEMS for t in TASKS if s != "urnn" and not SYSTEMS[s]().misfit(t)]


@pytest.mark.parametrize(
    ("system", "task"), FITTING, ids=lambda part: part if isinstance(part, str) else part.name
)
def test_every_system_is_written_and_equal(system: str, task: Task, tmp_path: Path) -> None:
    model = SYSTEMS[system](hidden=5).build(task, 0)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    written = export(model, task, tmp_path / "m.onnx", system)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert written.difference < 1e-5 and written.bytes == (tmp_path / "m.onnx").stat().st_size
    assert written.any_length == (system not in FIXED_LENGTH)
    inputs = random_inputs(task, task.length, 4)
    session = onnxruntime.InferenceSession(str(tmp_path / "m.onnx"))
    (found,) = session.run(None, {"inputs": inputs.numpy()})
    np.testing.assert_allclose(found, model(inputs)[0].detach().numpy(), rtol=1e-4, atol=1e-6)


def test_what_onnx_lacks_is_said(tmp_path: Path) -> None:
    task = AddingTask(length=4)
    with pytest.raises(RunError, match="cannot be written as ONNX") as caught:
        export(SYSTEMS["urnn"](hidden=3).build(task, 0), task, tmp_path / "m.onnx", "uRNN")
    assert "\n" not in str(caught.value)


def test_command_exports_the_best_parameters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    sizes = "--length 6 --valid-size 20 --test-size 20 --batch-size 4 --hidden 4 --steps 60"
    sizes += " --eval-every 10"
    assert (
        cli.main(["train", "adding", "irnn", "adam", *sizes.split(), "--run-dir", "r", "--quiet"])
        == 0
    )
    capsys.readouterr()
    assert cli.main(["export", "r"]) == 0
    text = capsys.readouterr().out
    assert "IRNN" in text and "LSTM, 4 units" in text
    spec, model = trained_model(Path("r"))
    recorded = read_record(Path("r/summary.json")).test
    assert spec.task.prepare().evaluate(model, "test") == pytest.approx(recorded, rel=1e-5)
    session = onnxruntime.InferenceSession("r/model.onnx")
    batch = next(iter(spec.task.prepare().eval_batches("test")))
    (found,) = session.run(None, {"inputs": batch.inputs.numpy()})
    assert float(((found - batch.targets.numpy()) ** 2).mean()) == pytest.approx(recorded, rel=1e-4)


@pytest.mark.parametrize("name", ["net.onnx", "lstm.onnx"])
def test_export_writes_its_file_and_touches_no_other(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    sizes = "--length 6 --valid-size 20 --test-size 20 --batch-size 4 --hidden 4 --steps 20"
    assert cli.main(["train", "adding", "irnn", *sizes.split(), "--run-dir", "r", "--quiet"]) == 0
    (tmp_path / "out").mkdir()
    neighbours = {"model.onnx", "lstm.onnx", "notes.txt"} - {name}
    for neighbour in neighbours:
        (tmp_path / "out" / neighbour).write_text("mine")
    assert cli.main(["export", "r", "--out", f"out/{name}"]) == 0
    onnxruntime.InferenceSession(f"out/{name}")
    assert {path.name for path in Path("out").iterdir()} == {name, *neighbours}
    assert all((tmp_path / "out" / neighbour).read_text() == "mine" for neighbour in neighbours)


def test_run_without_checkpoint_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "spec.json").write_text(
        '{"task": {"name": "adding"}, "system": {"name": "irnn"}, "optimiser": {"name": "sgd"}}'
    )
    assert cli.main(["export", str(tmp_path)]) == 2
    assert "no checkpoint to export" in capsys.readouterr().err
