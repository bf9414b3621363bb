"""A run's own estimate of its growth rate beside a thorough search: adding at full length.

Every `--every` steps: T * log(rate) as the optimiser tracks it between checks; the same as
`pathsgd.growth_rate` finds it from 64 starts with iterations in proportion to T; T * log of the
spectral radius (all ReLUs active); and the largest batch loss since the last line.

python benchmarks/growth_looks.py --length 750 --steps 20000 --until 3000 --seed 4
    --json studies/growth/looks.json
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import torch

import pathsgd
from pathsgd_lab.run.trainer import Trainer
from pathsgd_lab.studies.study import run

START = {"others_range": 0.3, "mean_bias": True, "decay": "linear"}
MATRIX = "rnn.weight_hh_l0"


def looks(length: int, steps: int, until: int, seed: int, every: int) -> list[dict[str, float]]:
    """The lines of one run."""
    spec = run(
        "adding",
        "rnn_path",
        "path-adam",
        length=length,
        steps=steps,
        seed=seed,
        **START,
        growth_limit=3.0,
        refresh_every=10,
        lr=1e-3,
    )
    trainer = Trainer(spec, spec.task.prepare(None))
    weight, example = trainer.model.get_parameter(MATRIX), spec.task.example_inputs()
    lines, largest = [], 0.0
    while trainer.step < until:
        trainer.stepper.scale_rate(spec.schedule.factor(trainer.step, trainer.step / steps))
        loss, _ = trainer.stepper.step(trainer.stream.next(), None)
        trainer.step += 1
        largest = max(largest, float(loss))
        if trainer.step % every == 0:
            followed = trainer.stepper.optimiser.growth_rates[MATRIX]  # type: ignore[attr-defined]
            thorough = pathsgd.growth_rate(trainer.model, example, output=0)[MATRIX]
            radius = torch.linalg.eigvals(weight.detach().double()).abs().amax()
            rates = {"followed": followed, "thorough": thorough, "radius": radius}
            logs = {
                name: round(length * math.log(max(float(rate), 1e-9)), 2)
                for name, rate in rates.items()
            }
            lines.append({"step": trainer.step, **logs, "largest_loss": float(f"{largest:.3g}")})
            print(lines[-1], flush=True)
            largest = 0.0
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in {
        "length": 750,
        "steps": 20_000,
        "until": 3000,
        "seed": 4,
        "every": 100,
    }.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--json", type=Path)
    options = vars(parser.parse_args())
    path = options.pop("json")
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    found = looks(**options)
    if path:
        path.write_text(json.dumps({**options, "looks": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
