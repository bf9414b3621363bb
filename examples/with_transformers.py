"""The Trainer of transformers.    python examples/with_transformers.py

A subclass overrides `create_optimizer`; everything else (schedule, accumulation, checkpoints,
resume) is the Trainer's. The Trainer wants the loss from the model, so the model is a small shell
around the network, and the optimiser gets the network.
"""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from transformers import Trainer, TrainingArguments, default_data_collator

from pathsgd import PathAdam
from task import Net, sequences


class WithLoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        predicted = self.net(x)
        return {"loss": mse_loss(predicted, labels), "predicted": predicted}


class PathTrainer(Trainer):
    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        if self.optimizer is None:
            self.optimizer = PathAdam(self.model.net, lr=self.args.learning_rate)
        return self.optimizer


def main(
    folder: str | None = None, epochs: int = 4, resume: bool = False, **options: Any
) -> PathTrainer:
    arguments = TrainingArguments(
        folder or tempfile.mkdtemp(), num_train_epochs=epochs, per_device_train_batch_size=32,
        learning_rate=1e-2,
        max_grad_norm=0.0, logging_steps=16, report_to=[], use_cpu=True, disable_tqdm=True, seed=0,
        **{"save_strategy": "no", **options},
    )  # fmt: skip
    rows = [{"x": x, "labels": y} for x, y in sequences()]
    torch.manual_seed(0)
    trainer = PathTrainer(
        WithLoss(), arguments, train_dataset=rows, data_collator=default_data_collator
    )
    trainer.train(resume_from_checkpoint=resume)
    print(f"loss {trainer.state.log_history[-1]['train_loss']:.5f}")
    return trainer


if __name__ == "__main__":
    main()
