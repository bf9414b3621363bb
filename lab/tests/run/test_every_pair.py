"""Every system learns on every task: with its own optimiser the loss on one batch falls."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from pathsgd_lab.run.spec import default_spec, replace_settings
from pathsgd_lab.run.trainer import Trainer
from pathsgd_lab.systems import SYSTEMS
from pathsgd_lab.tasks import TASKS

SIZES: dict[str, dict[str, Any]] = {
    "adding": {"length": 8, "valid_size": 20, "test_size": 20},
    "copy": {"lag": 3, "valid_size": 20, "test_size": 20},
    "smnist": {"subsample": 7, "valid_size": 10},
    "psmnist": {"subsample": 7, "valid_size": 10},
    "ptb_word": {"window": 5, "vocabulary": 20},
    "ptb_char": {"window": 6},
    "text8": {"window": 6, "limit": 2000},
    "mnist_autoencoder": {"subsample": 7, "valid_size": 10},
    "decision": {"valid_size": 20, "test_size": 20},
}
RATES = {"sgd": 0.1, "rmsprop": 3e-3, "adam": 1e-2, "path-adam": 1e-2}
STEPS = {"hessian-free": 3}


FITTING = [(s, t) for s in SYSTEMS for t in TASKS if not SYSTEMS[s]().misfit(TASKS[t]())]


@pytest.mark.parametrize(("system", "task"), FITTING)
def test_loss_falls(system: str, task: str, tiny_data: Path) -> None:
    spec = default_spec(task, system)
    name = spec.optimiser.name
    changes = {"hidden": 8, "batch_size": 8, "steps": 100, **SIZES[task]}
    changes |= {"lr": RATES[name]} if name in RATES else {"cg_iterations": 5}
    if system == "norm_stabilizer":
        changes["beta"] = 1.0  # at 500 the penalty is most of what a step is about
    spec = replace_settings(spec, **changes)
    torch.manual_seed(0)
    trainer = Trainer(spec, spec.task.prepare(tiny_data))
    batch = trainer.stream.next()
    losses = [trainer.stepper.step(batch, None)[0].item() for _ in range(STEPS.get(name, 30))]
    assert all(map(math.isfinite, losses))
    assert losses[-1] < 0.98 * losses[0]
