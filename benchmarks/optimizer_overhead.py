"""What step() of the path optimisers costs outside kappa, against torch.optim's own step().

    python benchmarks/optimizer_overhead.py [--repetitions 400] [--threads 1] [--json FOLDER]

Models of 20 tensors. The metric is measured once, before the clock starts, and kept (refresh_every
is huge). Medians of repetitions in which all optimisers take turns in a random order, so that none
always finds the caches as another left them. Times are in microseconds, with ratios to
torch.optim.SGD in brackets.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from settings import machine
from torch import Tensor, nn

from pathsgd import PathAdam, PathSGD

NEVER = 10**9
LR = 1e-9


class Recurrent(nn.Module):
    """Four recurrent layers and two linear ones: 20 tensors, four of them used at every step."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.rnn = nn.RNN(width, width, 4, nonlinearity="relu", batch_first=True)
        self.head = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[0][:, -1])


def feed_forward(width: int) -> nn.Module:
    layers = [module for _ in range(10) for module in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def steps_of(model: nn.Module) -> dict[str, Callable[[], object]]:
    """All step() functions on the same model with the same gradients."""
    parameters = list(model.parameters())
    sgd = torch.optim.SGD(parameters, LR)

    def sgd_with_clip() -> None:
        nn.utils.clip_grad_norm_(parameters, 1e9)
        sgd.step()

    return {
        "SGD": sgd.step,
        "SGD, clip_grad_norm_": sgd_with_clip,
        "PathSGD": PathSGD(model, LR, refresh_every=NEVER).step,
        "PathSGD growth=None": PathSGD(model, LR, growth=None, refresh_every=NEVER).step,
        "PathSGD growth=None, clip=None": PathSGD(
            model, LR, growth=None, clip=None, refresh_every=NEVER
        ).step,
        "PathSGD momentum": PathSGD(model, LR, momentum=0.9, refresh_every=NEVER).step,
        "SGD momentum": torch.optim.SGD(parameters, LR, momentum=0.9).step,
        "PathAdam": PathAdam(model, LR, refresh_every=NEVER).step,
        "Adam": torch.optim.Adam(parameters, LR).step,
    }


def medians(steps: dict[str, Callable[[], object]], repetitions: int) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in steps}
    order, shuffle = list(steps), random.Random(0)
    for _ in range(repetitions):
        shuffle.shuffle(order)
        for name in order:
            start = time.perf_counter()
            steps[name]()
            times[name].append(time.perf_counter() - start)
    return {name: 1e6 * statistics.median(values) for name, values in times.items()}


def main() -> None:
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--repetitions", type=int, default=400)
    arguments.add_argument("--threads", type=int, default=1)
    arguments.add_argument("--json", type=Path, help="directory for the record")
    options = arguments.parse_args()
    torch.set_num_threads(options.threads)
    torch.set_flush_denormal(
        True
    )  # the same gradient over and over makes some; a training run does not
    columns: dict[str, dict[str, float]] = {}
    for width in (16, 64, 100):
        for kind, model, x in (
            ("feed-forward", feed_forward(width), torch.randn(4, width)),
            ("recurrent", Recurrent(width), torch.randn(4, 10, width)),
        ):
            assert len(list(model.parameters())) == 20
            steps = steps_of(model)
            model(x).square().mean().backward()
            for step in steps.values():
                step()
            columns[f"{kind} {width}"] = medians(steps, options.repetitions)
    print(f"{'':32}" + "".join(f"{name:>18}" for name in columns))
    for name in next(iter(columns.values())):
        cells = (
            f"{times[name]:.0f} ({times[name] / times['SGD']:.2f})" for times in columns.values()
        )
        print(f"{name:32}" + "".join(f"{cell:>18}" for cell in cells))
    if options.json:
        options.json.mkdir(parents=True, exist_ok=True)
        record = {**machine(), "threads": options.threads, "microseconds": columns}
        (options.json / "optimizer_overhead.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
