"""A ReLU continuous-time RNN learns to decide, and its activity is plotted.

    python examples/decision.py

The task is the classic one of perceptual decisions: look at a fixation point; noisy evidence for left and for right
arrives; wait through a delay of random length; when the fixation point goes, say which was stronger. The net is

    h <- (1 - a) h + a relu(W h + W_in x + b)        a = dt / tau

with the firing rates h. Its growth rate is that of the whole map, the leak included, and PathAdam bounds it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import matplotlib
import torch
import tyro
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import pathsgd

matplotlib.use("Agg")
import matplotlib.pyplot as plt

FIXATION, LEFT, RIGHT = range(3)
LOOK, STIMULUS, LONGEST_DELAY, ANSWER = 5, 20, 20, 10


@dataclass(frozen=True)
class Options:
    """Train a continuous-time RNN on perceptual decisions, and plot what its units do."""

    steps: int = 1500
    units: int = 64
    leak: float = 0.2
    """a = dt / tau: 20 ms steps, a time constant of 100 ms."""
    lr: float = 3e-3
    seed: int = 0
    out: Path = Path("runs/decision.png")


class ContinuousTimeRNN(nn.Module):
    def __init__(self, units: int, leak: float) -> None:
        super().__init__()
        self.leak = leak
        self.into, self.recurrent, self.out = (
            nn.Linear(3, units),
            nn.Linear(units, units, bias=False),
            nn.Linear(units, 3),
        )
        nn.init.orthogonal_(self.recurrent.weight)

    def rates(self, x: Tensor) -> Tensor:
        """Firing rates (T, B, units) for inputs (T, B, 3)."""
        h, states = x.new_zeros(x.shape[1], self.recurrent.in_features), []
        for now in x:
            h = (1 - self.leak) * h + self.leak * torch.relu(self.recurrent(h) + self.into(now))
            states.append(h)
        return torch.stack(states)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.rates(x))


def trials(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs (T, B, 3), what to do at each moment (T, B), and the evidence for right less that for left (B,)."""
    length = LOOK + STIMULUS + LONGEST_DELAY + ANSWER
    choices = torch.tensor([-0.5, -0.25, -0.1, 0.1, 0.25, 0.5])
    evidence = choices[torch.randint(len(choices), (count,), generator=generator)]
    go = LOOK + STIMULUS + torch.randint(LONGEST_DELAY, (count,), generator=generator)
    time = torch.arange(length)[:, None]
    x = torch.zeros(length, count, 3)
    x[:, :, FIXATION] = (time < go).float()
    shown = slice(LOOK, LOOK + STIMULUS)
    noise = 0.5 * torch.randn(STIMULUS, count, 2, generator=generator)
    x[shown, :, LEFT:] = 0.5 + torch.stack([-evidence, evidence], 1) / 2 + noise
    answer = torch.where(evidence > 0, RIGHT, LEFT)
    return x, torch.where(time < go, FIXATION, answer), evidence


@torch.no_grad()
def share_of_right_answers(net: ContinuousTimeRNN, generator: torch.Generator) -> float:
    """Of new trials, by the answer at their last moment."""
    x, y, _ = trials(1000, generator)
    return (net(x)[-1].argmax(1) == y[-1]).float().mean().item()


@torch.no_grad()
def plot(net: ContinuousTimeRNN, path: Path) -> None:
    """Firing rates of every unit in one trial, and the mean rates of the two choices along their difference."""
    x, _, evidence = trials(400, torch.Generator().manual_seed(3))
    rates = net.rates(x)
    left, right = (rates[:, chosen].mean(1) for chosen in (evidence < 0, evidence > 0))
    prefer = (right - left)[LOOK : LOOK + STIMULUS].mean(0)
    figure, (top, bottom) = plt.subplots(2, 1, figsize=(6.4, 5.6), sharex=True, layout="constrained")
    shown = top.imshow(rates[:, 0, prefer.argsort()].T, aspect="auto", cmap="viridis", origin="lower")
    top.set(ylabel="unit, by preference", title="firing rates in one trial")
    figure.colorbar(shown, ax=top, label="rate")
    for rate, colour, name in ((left, "#D55E00", "left"), (right, "#0072B2", "right")):
        bottom.plot(rate @ prefer / prefer.norm(), color=colour, label=f"evidence for {name}")
    bottom.axvspan(LOOK, LOOK + STIMULUS, alpha=0.15, color="k", label="evidence is shown")
    bottom.set(xlabel="time step (20 ms)", ylabel="mean activity along the choice")
    bottom.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main(options: Options) -> float:
    torch.manual_seed(options.seed)
    generator = torch.Generator().manual_seed(options.seed)
    net = ContinuousTimeRNN(options.units, options.leak)
    optimizer = pathsgd.PathAdam(net, lr=options.lr, refresh_every=10)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, options.steps)
    for step in range(options.steps):
        x, y, _ = trials(32, generator)
        loss = cross_entropy(net(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 100 == 0:
            (rate,) = optimizer.growth_rates.values()
            print(f"step {step:5}  loss {loss.item():.4f}  growth rate {rate.item():.3f}", flush=True)
    right = share_of_right_answers(net, generator)
    plot(net, options.out)
    print(f"right answers in new trials: {100 * right:.1f} %   picture: {options.out}")
    return right


if __name__ == "__main__":
    main(tyro.cli(Options))
