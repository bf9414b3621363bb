"""One function in two scalings, trained by Adam and PathAdam: the record and its picture.

python docs/pictures/two_scalings.py --train    # writes two-scalings.json, then draws
python docs/pictures/two_scalings.py            # draws two-scalings.svg from that record

The adding problem with short sequences and a small ReLU RNN, in float64: the two scalings are
rounded differently and training amplifies the difference; in float32 it becomes visible.
"""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn

import pathsgd

RECORD = Path(__file__).with_name("two-scalings.json")
PICTURE = Path(__file__).with_name("two-scalings.svg")
LENGTH, UNITS, BATCH, STEPS, RATE, FACTOR = 10, 32, 16, 300, 2e-3, 100.0
AS_MADE, RESCALED = "as initialised", f"units rescaled by 1/{FACTOR:g} to {FACTOR:g}"


class Adder(nn.Module):
    """A ReLU RNN that answers once, from its last state."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.RNN(2, UNITS, nonlinearity="relu")
        self.out = nn.Linear(UNITS, 1)

    def forward(self, x: Tensor) -> Tensor:
        """(T, B, 2) to (B, 1)."""
        return self.out(self.rnn(x)[1][0])


def batch(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Sequences of numbers, two of them marked, and the sums of those two."""
    numbers = torch.rand(LENGTH, BATCH, generator=generator, dtype=torch.float64)
    marks = torch.zeros_like(numbers)
    for half in (0, LENGTH // 2):
        marks[
            half + torch.randint(LENGTH // 2, (BATCH,), generator=generator), torch.arange(BATCH)
        ] = 1
    return torch.stack([numbers, marks], 2), (numbers * marks).sum(0)[:, None]


def losses(net: nn.Module, optimizer: torch.optim.Optimizer) -> list[float]:
    """The training loss at every step."""
    generator, found = torch.Generator().manual_seed(0), []
    for _ in range(STEPS):
        x, y = batch(generator)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def train() -> None:
    """Train four nets and write the record."""
    torch.manual_seed(0)
    net = Adder().double()
    nn.init.eye_(net.rnn.weight_hh_l0)
    x = batch(torch.Generator().manual_seed(1))[0]
    twin = pathsgd.random_rescaling(
        copy.deepcopy(net),
        x,
        low=1 / FACTOR,
        high=FACTOR,
        generator=torch.Generator().manual_seed(2),
    )
    curves: dict[str, dict[str, list[float]]] = {"Adam": {}, "PathAdam": {}}
    for scaling, model in ((AS_MADE, net), (RESCALED, twin)):
        one, two = copy.deepcopy(model), copy.deepcopy(model)
        curves["Adam"][scaling] = losses(one, torch.optim.Adam(one.parameters(), lr=RATE))
        curves["PathAdam"][scaling] = losses(two, pathsgd.PathAdam(two, lr=RATE))
    settings = {
        "length": LENGTH,
        "units": UNITS,
        "batch": BATCH,
        "steps": STEPS,
        "lr": RATE,
        "factor": FACTOR,
        "seed": 0,
    }
    versions = {"pathsgd": pathsgd.__version__, "torch": torch.__version__}
    RECORD.write_text(
        json.dumps({"settings": settings, "versions": versions, "losses": curves}) + "\n"
    )


def draw(path: Path) -> None:
    """Two panels, one an optimiser, with the same axes; each point is the mean of ten steps."""
    curves = json.loads(RECORD.read_text())["losses"]
    plt.rcParams.update({"svg.hashsalt": "pathsgd", "font.size": 9})
    figure, panels = plt.subplots(1, 2, figsize=(7.6, 3.0), sharey=True, layout="constrained")
    # Blue and vermilion are told apart by everyone; dashed on solid shows in grey as well.
    for panel, colour, (optimiser, scalings) in zip(panels, ("#D55E00", "#0072B2"), curves.items()):
        for (scaling, values), style in zip(
            scalings.items(), ({"color": colour, "lw": 3.5}, {"color": "k", "ls": "--"})
        ):
            means = torch.tensor(values).reshape(-1, 10).mean(1)
            panel.semilogy(range(10, len(values) + 1, 10), means, label=scaling, **style)
        panel.set(title=optimiser, xlabel="step")
        panel.grid(alpha=0.3)
        panel.legend(frameon=False)
    panels[0].set_ylabel("training loss (mean squared error)")
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    plt.close(figure)


if __name__ == "__main__":
    if "--train" in sys.argv:
        train()
    draw(PICTURE)
