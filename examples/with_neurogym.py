"""A ReLU continuous-time RNN learns one of neurogym's tasks, and its activity is plotted.

    python examples/with_neurogym.py

The task is the classic one of perceptual decisions: look at a fixation point; noisy evidence for
left and for right arrives; wait through a delay of random length; when the fixation point goes, say
which was stronger. The net is

    h <- (1 - a) h + a relu(W h + W_in x + b)        a = dt / tau

with the firing rates h. Its growth rate is that of the whole map, the leak included, and PathAdam
bounds it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import neurogym
import torch
import tyro
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence

import pathsgd

matplotlib.use("Agg")
import matplotlib.pyplot as plt

TASK = "PerceptualDecisionMakingDelayResponse-v0"
STEP, FIXATION, STIMULUS, DELAYS, DECISION = 20, 100, 400, (100, 200, 300, 400), 200
"""Milliseconds: of one step, and of the periods of a trial."""
CHOICES, IGNORED = 3, -100
"""Wait, left, right; what is asked for after the end of a trial."""


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
        self.into = nn.Linear(3, units)
        self.recurrent = nn.Linear(units, units, bias=False)
        self.out = nn.Linear(units, CHOICES)
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


def make_task(seed: int, delays: tuple[int, ...] = DELAYS) -> Any:
    """neurogym's environment; all delays are random but where there is one."""
    timing = {"fixation": FIXATION, "stimulus": STIMULUS, "delay": delays, "decision": DECISION}
    env = neurogym.make(TASK, dt=STEP, timing=timing).unwrapped
    env.seed(seed)
    env.reset()
    return env


def trials(env: Any, count: int, **settings: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs (T, B, 3), actions (T, B), by how many per cent the right side was stronger (B,)."""
    inputs, answers, evidence = [], [], []
    for _ in range(count):
        trial = env.new_trial(**settings)
        inputs.append(torch.from_numpy(env.ob.copy()).float())
        answers.append(torch.from_numpy(env.gt.copy()).long())
        evidence.append(float(trial["coh"]) * (1 if trial["ground_truth"] == 2 else -1))
    return (
        pad_sequence(inputs),
        pad_sequence(answers, padding_value=IGNORED),
        torch.tensor(evidence),
    )


@torch.no_grad()
def share_of_right_answers(net: ContinuousTimeRNN, env: Any, count: int = 1000) -> float:
    """Of new trials in which there is evidence, by the answer at their last moment."""
    x, y, evidence = trials(env, count)
    last = (y != IGNORED).sum(0) - 1
    answer = net(x).argmax(-1).gather(0, last[None])[0]
    return (answer == y.gather(0, last[None])[0])[evidence != 0].float().mean().item()


@torch.no_grad()
def plot(net: ContinuousTimeRNN, path: Path) -> None:
    """Firing rates in one trial, and the mean rates of the two choices along their difference."""
    env = make_task(seed=3, delays=DELAYS[-1:])
    left, right = (net.rates(trials(env, 200, ground_truth=side, coh=25.6)[0]) for side in (1, 2))
    shown = slice(FIXATION // STEP, (FIXATION + STIMULUS) // STEP)
    prefer = (right - left).mean(1)[shown].mean(0)
    figure, (top, bottom) = plt.subplots(
        2, 1, figsize=(6.4, 5.6), sharex=True, layout="constrained"
    )
    picture = top.imshow(
        right[:, 0, prefer.argsort()].T, aspect="auto", cmap="viridis", origin="lower"
    )
    top.set(ylabel="unit, by preference", title="firing rates in one trial, evidence for right")
    figure.colorbar(picture, ax=top, label="rate")
    for rates, colour, name in ((left, "#D55E00", "left"), (right, "#0072B2", "right")):
        bottom.plot(
            rates.mean(1) @ prefer / prefer.norm(), color=colour, label=f"evidence for {name}"
        )
    bottom.axvspan(shown.start, shown.stop, alpha=0.15, color="k", label="evidence is shown")
    bottom.axvline(
        shown.stop + DELAYS[-1] // STEP, color="k", linestyle=":", label="the fixation point goes"
    )
    bottom.set(xlabel=f"time step ({STEP} ms)", ylabel="mean activity along the choice")
    figure.legend(loc="outside lower center", ncols=2)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main(options: Options) -> float:
    torch.manual_seed(options.seed)
    env = make_task(options.seed)
    net = ContinuousTimeRNN(options.units, options.leak)
    optimizer = pathsgd.PathAdam(net, lr=options.lr, refresh_every=10)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, options.steps)
    for step in range(options.steps):
        x, y, _ = trials(env, 32)
        loss = cross_entropy(net(x).flatten(0, 1), y.flatten(), ignore_index=IGNORED)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 100 == 0:
            (rate,) = optimizer.growth_rates.values()
            print(
                f"step {step:5}  loss {loss.item():.4f}  growth rate {rate.item():.3f}", flush=True
            )
    right = share_of_right_answers(net, env)
    plot(net, options.out)
    print(f"right answers in new trials: {100 * right:.1f} %   picture: {options.out}")
    return right


if __name__ == "__main__":
    main(tyro.cli(Options))
