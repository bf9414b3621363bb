"""What an optimiser that watches a compiled model costs its forward and backward pass.

    python benchmarks/compiled_passes.py [--repetitions 15]

Processor time of 5 passes, with and without the optimiser in turn: the least of each and the ratio.
"""

from __future__ import annotations

import argparse
import copy
import time

import torch
from torch import nn

from pathsgd import PathAdam


def compiled() -> nn.Module:
    """Three layers of 256 units."""
    layers = [nn.Linear(256, 256), nn.ReLU()] * 3
    return torch.compile(nn.Sequential(*copy.deepcopy(layers)), backend="eager")


def seconds(model: nn.Module, x: torch.Tensor) -> float:
    """Processor time of 5 passes."""
    start = time.process_time()
    for _ in range(5):
        model(x).square().mean().backward()
    return time.process_time() - start


def main(repetitions: int) -> None:
    """Print both times and their ratio."""
    torch.manual_seed(0)
    x = torch.randn(512, 256)
    watched, alone = compiled(), compiled()
    optimizer = PathAdam(watched, refresh_every=10)
    seconds(watched, x), seconds(alone, x)
    optimizer.step()
    pairs = [(seconds(watched, x), seconds(alone, x)) for _ in range(repetitions)]
    ours, bare = map(min, zip(*pairs))
    print(f"watched {1e3 * ours:.2f} ms, alone {1e3 * bare:.2f} ms, ratio {ours / bare:.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=15)
    main(parser.parse_args().repetitions)
