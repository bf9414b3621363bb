"""Lightning, automatic and manual optimisation: python examples/with_lightning.py [--manual]

The optimiser gets the network whose forward pass the training step runs (`self.net`), not the
LightningModule: input shapes are learnt from the network's own calls. Gradient accumulation,
checkpoints and schedulers are Lightning's own. Lightning's gradient clipping bounds the Euclidean
norm, which rescaling changes; PathAdam clips the invariant one by itself, so leave
`gradient_clip_val` out unless you want both.
"""

from __future__ import annotations

import sys
from typing import Any

import lightning
import torch
from torch import Tensor
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader

from pathsgd import PathAdam
from task import Net, sequences


class Regression(lightning.LightningModule):
    def __init__(self, manual: bool = False) -> None:
        super().__init__()
        self.net = Net()
        self.automatic_optimization = not manual

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        x, y = batch
        loss = mse_loss(self.net(x), y)
        self.log("loss", loss, prog_bar=True)
        if not self.automatic_optimization:
            optimizer: Any = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = PathAdam(self.net, lr=1e-2)
        scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.5, total_iters=4)
        return {"optimizer": optimizer, "lr_scheduler": scheduler}


def main(
    manual: bool = False, epochs: int = 4, resume: str | None = None, **options: Any
) -> lightning.Trainer:
    lightning.seed_everything(0, verbose=False)
    quiet: dict[str, Any] = {
        "accelerator": "cpu", "devices": 1, "logger": False, "enable_progress_bar": False,
        "enable_model_summary": False, "enable_checkpointing": False,
    }  # fmt: skip
    trainer = lightning.Trainer(max_epochs=epochs, **{**quiet, **options})
    loader = DataLoader(sequences(), batch_size=32, shuffle=True)
    trainer.fit(Regression(manual), loader, ckpt_path=resume)
    print(f"loss {float(trainer.callback_metrics['loss']):.5f}")
    return trainer


if __name__ == "__main__":
    main("--manual" in sys.argv[1:])
