"""A trained model as ONNX: written, compared with torch, and timed beside an LSTM.

The graph takes whole sequences (T, B, I) or symbols (T, B) and gives what the model gives.
Recurrent layers become ONNX's own RNN, LSTM and GRU operators, so that the number of steps stays
free; systems that are unrolled step by step are written for the task's length.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from torch import Tensor, nn

from pathsgd.nn import RNN
from pathsgd_lab.errors import RunError
from pathsgd_lab.files import write_file
from pathsgd_lab.run import checkpoint
from pathsgd_lab.run.directory import RunDirectory
from pathsgd_lab.run.spec import RunSpec
from pathsgd_lab.systems import LstmSystem, SequenceNet
from pathsgd_lab.tasks import Task

TOLERANCE = 1e-4
"""Largest difference from torch that is accepted, relative to the largest output."""
RUNS_TO_TIME = 30


@dataclass(frozen=True)
class Exported:
    """A model as ONNX."""

    name: str
    parameters: int
    bytes: int
    difference: float
    """Largest difference from torch's outputs on random inputs, relative to the largest output."""
    any_length: bool
    """Whether sequences of other lengths than the task's are accepted."""
    milliseconds: float
    """Median time for one sequence, one thread."""


class OutputsOnly(nn.Module):
    """The model without its state."""

    def __init__(self, model: SequenceNet) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor) -> Tensor:
        """Outputs of whole sequences."""
        outputs: Tensor = self.model(inputs)[0]
        return outputs


def trained_model(directory: Path) -> tuple[RunSpec, SequenceNet]:
    """The spec of a run and its model with the parameters that count."""
    run = RunDirectory(directory)
    spec = run.read_spec()
    state = checkpoint.load_newest(directory)
    if state is None:
        raise RunError(
            f"{directory} has no checkpoint to export: let the run go on (pathsgd resume), or "
            "train it anew"
        )
    model = spec.system.build(spec.task, spec.seed)
    model.load_state_dict(state["model"] if state["best"] is None else state["best"]["model"])
    return spec, model


def with_torch_layers(model: SequenceNet) -> SequenceNet:
    """A copy with torch's layers in place of fused ones, over the same parameters."""
    replaced = copy.deepcopy(model)
    for owner in replaced.modules():
        for name, part in list(owner.named_children()):
            if isinstance(part, RNN):
                plain = nn.RNN(part.input_size, part.hidden_size, nonlinearity="relu")
                # By name: a matrix that is computed, an orthogonal one, is written as it is.
                plain.load_state_dict(
                    {key: getattr(part, key).detach() for key in plain.state_dict()}
                )
                setattr(owner, name, plain)
    return replaced


def random_inputs(task: Task, steps: int, batch: int) -> Tensor:
    """Inputs of the task's kind."""
    generator = torch.Generator().manual_seed(0)
    if task.tokens:
        return torch.randint(task.input_size, (steps, batch), generator=generator)
    return torch.rand(steps, batch, task.input_size, generator=generator)


def export(model: SequenceNet, task: Task, path: Path, name: str) -> Exported:
    """Make, check and time a model, then write it."""
    content, made = _made(model, task, name)
    write_file(path, content)
    return made


def lstm_beside(task: Task, hidden: int) -> Exported:
    """An untrained LSTM with as many units, for size and speed; it is not written."""
    return _made(LstmSystem(hidden=hidden).build(task, 0), task, f"LSTM, {hidden} units")[1]


def _made(model: SequenceNet, task: Task, name: str) -> tuple[bytes, Exported]:
    net = OutputsOnly(with_torch_layers(model)).eval()
    content = _onnx(net, random_inputs(task, task.length, 2))
    session = _session(content)
    difference = max(
        _difference(net, session, random_inputs(task, task.length, batch)) for batch in (1, 3)
    )
    if not difference <= TOLERANCE:
        raise RunError(
            f"the ONNX of {name} differs from the model by {difference:.1e}, more than "
            f"{TOLERANCE:g}"
        )
    return content, Exported(
        name,
        parameters=sum(p.numel() for p in model.parameters() if p.requires_grad),
        bytes=len(content),
        difference=difference,
        any_length=_accepts(net, session, random_inputs(task, task.length + 3, 1)),
        milliseconds=_latency(session, random_inputs(task, task.length, 1)),
    )


def _onnx(net: nn.Module, example: Tensor) -> bytes:
    axes = {"inputs": {0: "time", 1: "batch"}}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        try:
            with _silence():
                # The exporter that traces: the newer one fixes the length of sequences to the
                # example's.
                torch.onnx.export(
                    net, (example,), path, input_names=["inputs"], output_names=["outputs"],
                    dynamic_axes=axes,
                    dynamo=False,
                )  # fmt: skip
        except torch.onnx.errors.UnsupportedOperatorError as error:
            first = str(error).split(". ")[0]
            raise RunError(f"this system cannot be written as ONNX: {first}") from None
        onnx.checker.check_model(str(path))
        return path.read_bytes()


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Keep the exporter's advice to itself: what it warns of is checked afterwards."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            logger.setLevel(level)


def _session(content: bytes) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = (
        4  # whether other lengths are accepted is found by trying: failures are no news
    )
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def _difference(net: nn.Module, session: Any, inputs: Tensor) -> float:
    with torch.no_grad():
        expected = net(inputs).numpy()
    found = session.run(None, {"inputs": inputs.numpy()})[0]
    if found.shape != expected.shape:
        return float("inf")
    return float(np.abs(found - expected).max() / max(1e-30, float(np.abs(expected).max())))


def _accepts(net: nn.Module, session: Any, inputs: Tensor) -> bool:
    try:
        return _difference(net, session, inputs) <= TOLERANCE
    except (
        onnxruntime.capi.onnxruntime_pybind11_state.Fail,
        onnxruntime.capi.onnxruntime_pybind11_state.InvalidArgument,
        RuntimeError,  # torch's: the net itself reads sequences of one length only
    ):
        return False


def _latency(session: Any, inputs: Tensor) -> float:
    feed = {"inputs": inputs.numpy()}
    times = []
    for _ in range(RUNS_TO_TIME):
        start = time.perf_counter()
        session.run(None, feed)
        times.append(time.perf_counter() - start)
    return 1e3 * float(np.median(times))
