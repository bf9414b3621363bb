"""The growth bound's share of a training step: processor time inside it over whole steps.

    python benchmarks/growth_bound.py [--hidden 100] [--steps 500] [--refresh-every 1]

Setting: the adding problem at T = 100, batches of 16, identity start, PathAdam at 1e-3. Early in
training nearly every check corrects. The first step, which searches thoroughly, is not counted.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch

import pathsgd
from pathsgd.optim import growth
from pathsgd_lab.run.spec import default_spec, replace_settings
from pathsgd_lab.run.trainer import Trainer

WINDOW = 100
START: dict[str, Any] = {"others_range": 0.3, "mean_bias": True, "decay": "linear"}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hidden", type=int, default=100)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--refresh-every", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    settings = {
        **START,
        "hidden": options.hidden,
        "refresh_every": options.refresh_every,
        "steps": 10 * options.steps,
    }
    spec = replace_settings(default_spec("adding", "rnn_path", "path-adam-relative"), **settings)
    trainer = Trainer(spec, spec.task.prepare(None))
    inside, whole_call = [0.0], growth.bound_parts_

    def timed(*arguments: Any, **options: Any) -> Any:
        begun = time.process_time()
        result = whole_call(*arguments, **options)
        inside[0] += time.process_time() - begun
        return result

    growth.bound_parts_ = timed
    print(
        f"pathsgd {pathsgd.__version__}, {options.hidden} units, metric every "
        f"{options.refresh_every} steps"
    )
    window = min(WINDOW, options.steps)
    trainer.stepper.step(trainer.stream.next(), None)
    for first in range(0, options.steps, window):
        inside[0], begun = 0.0, time.process_time()
        for _ in range(window):
            trainer.stepper.step(trainer.stream.next(), None)
        total = time.process_time() - begun
        each, bound = (f"{1e6 * seconds / window:.0f} us" for seconds in (total, inside[0]))
        print(
            f"steps {first} to {first + window}: {each} a step, bound {bound}, "
            f"{100 * inside[0] / total:.1f} %"
        )


if __name__ == "__main__":
    main()
