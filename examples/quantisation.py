"""A net for handwritten digits in int8: as trained, badly scaled, and balanced.

    python examples/quantisation.py

ONNX Runtime makes the int8 net (weights and activations, calibrated on training images) and says
how far each layer is off. All three nets compute the same function before.
"""

from __future__ import annotations

import copy
import logging
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
import tyro
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    qdq_loss_debug,
    quantize_static,
)
from torch import Tensor, nn

import pathsgd
from mnist import FACTOR, NETS, accuracy, images, rescaled, trained, write_record

FLOAT, INT8 = "float.onnx", "int8.onnx"


@dataclass(frozen=True)
class Options:
    """Accuracy and error of each layer in int8, for two nets and three scalings."""

    data_dir: Path | None = None
    """Where the four files of MNIST are; None: $PATHSGD_DATA, or the user's cache directory."""
    epochs: int = 2
    seeds: int = 2
    limit: int = 0
    """Use only the first so many images; 0: all."""
    calibration: int = 500
    """Training images from which the ranges of activations are found."""
    out: Path = Path("examples/records/quantisation.json")
    """Where the record goes."""


class Reader(CalibrationDataReader):
    """Images, a hundred at a time."""

    def __init__(self, x: Tensor) -> None:
        self.parts: Iterator[Tensor] = iter(x.split(100))

    def get_next(self) -> dict[str, np.ndarray] | None:
        part = next(self.parts, None)
        return None if part is None else {"x": part.numpy()}


def export(net: nn.Module, x: Tensor, folder: Path) -> None:
    """Write the net to the folder, in float."""
    torch.onnx.export(
        net.eval(), (x[:2],), folder / FLOAT, input_names=["x"], output_names=["y"],
        dynamic_shapes=({0: torch.export.Dim("batch")},), dynamo=True, external_data=False,
        verbose=False,
    )  # fmt: skip


def quantise(x: Tensor, folder: Path, per_channel: bool) -> None:
    """Write it in int8, with one scale for each tensor, or one for each row of weights."""
    quantize_static(
        folder / FLOAT, folder / INT8, Reader(x), quant_format=QuantFormat.QDQ,
        per_channel=per_channel,
        weight_type=QuantType.QInt8, activation_type=QuantType.QUInt8,
    )  # fmt: skip


class Session(nn.Module):
    """A net in a file, as a module."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.run = onnxruntime.InferenceSession(
            path, options, providers=["CPUExecutionProvider"]
        ).run

    def forward(self, x: Tensor) -> Tensor:
        return torch.from_numpy(self.run(["y"], {"x": x.numpy()})[0])


def layer_errors(folder: Path, x: Tensor) -> dict[str, float]:
    """For what each layer puts out, |int8 - float| / |float| over these images."""
    found = []
    for name in (FLOAT, INT8):
        watched = folder / f"watched-{name}"
        qdq_loss_debug.modify_model_output_intermediate_tensors(str(folder / name), str(watched))
        found.append(qdq_loss_debug.collect_activations(str(watched), Reader(x)))
    pairs = qdq_loss_debug.create_activation_matching(found[1], found[0])
    errors = {}
    for number, name in enumerate(
        [*sorted(name for name in pairs if name.startswith("relu")), "y"], 1
    ):
        exact, rounded = (np.concatenate(pairs[name][key]) for key in ("float", "post_qdq"))
        errors[f"layer {number}"] = float(np.linalg.norm(rounded - exact) / np.linalg.norm(exact))
    return errors


def measured(
    net: nn.Module, x: Tensor, test_x: Tensor, test_y: Tensor, folder: Path
) -> Iterator[dict[str, Any]]:
    """The net in int8, in two ways: accuracy before and after, and the error of every layer."""
    export(net, x, folder)
    exact = accuracy(Session(folder / FLOAT), test_x, test_y)
    for weights in ("one scale a tensor", "one scale a row"):
        quantise(x, folder, weights == "one scale a row")
        rounded = accuracy(Session(folder / INT8), test_x, test_y)
        yield {
            "weights": weights,
            "float": exact,
            "int8": rounded,
            "errors": layer_errors(folder, test_x[:500]),
        }


def main(options: Options) -> None:
    logging.getLogger().setLevel(
        logging.ERROR
    )  # advice for nets that were exported by something else
    x, y = images("train", options.data_dir, options.limit)
    test = images("test", options.data_dir, options.limit)
    rows = []
    for kind in NETS:
        for seed in range(options.seeds):
            net = trained(kind, seed, options.epochs, x, y)
            rough = rescaled(net, x, seed)
            smooth = pathsgd.balance(copy.deepcopy(rough), x[:1])
            for scaling, model in (("as trained", net), ("rescaled", rough), ("balanced", smooth)):
                with tempfile.TemporaryDirectory() as place:
                    for row in measured(model, x[: options.calibration], *test, Path(place)):
                        rows.append({"net": kind, "seed": seed, "scaling": scaling, **row})
                        print(*rows[-1].values(), flush=True)
    chosen = {
        name: value for name, value in asdict(options).items() if name not in ("data_dir", "out")
    }
    write_record(options.out, __file__, {**chosen, "factor": FACTOR, "images": len(x)}, rows)


if __name__ == "__main__":
    main(tyro.cli(Options))
