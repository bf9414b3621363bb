"""A trained ReLU RNN as an ONNX file that other programs run, checked against torch.

python examples/export.py
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import onnxruntime
import torch
import tyro

import plain
from task import sequences


@dataclass(frozen=True)
class Options:
    """Train, export, compare."""

    epochs: int = 4
    out: Path = Path("runs/net.onnx")


def main(options: Options) -> float:
    net = plain.train(options.epochs)[0].cpu().eval()
    x = sequences(count=64).tensors[0]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    batch = torch.export.Dim("batch")
    torch.onnx.export(
        net, (x[:2],), options.out, input_names=["x"], output_names=["y"],
        dynamic_shapes=({0: batch},),
        dynamo=True, external_data=False, verbose=False,
    )  # fmt: skip
    session = onnxruntime.InferenceSession(options.out, providers=["CPUExecutionProvider"])
    (there,) = session.run(["y"], {"x": x.numpy()})
    difference = (torch.from_numpy(there) - net(x).detach()).abs().max().item()
    print(
        f"{options.out}: {options.out.stat().st_size} bytes, off by {difference:.1e} on {len(x)} "
        "sequences"
    )
    return difference


if __name__ == "__main__":
    main(tyro.cli(Options))
