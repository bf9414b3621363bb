"""Hugging Face Accelerate: python examples/with_accelerate.py, or by accelerate launch.

The optimiser may be made from the model before or after `prepare`; here before, as Accelerate's own
pages do it.
"""

from __future__ import annotations

from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader

from pathsgd import PathAdam
from task import Net, sequences


def main(
    epochs: int = 4, accumulate: int = 2, mixed_precision: str = "no", cpu: bool = True
) -> list[float]:
    set_seed(0)
    accelerator = Accelerator(
        gradient_accumulation_steps=accumulate, mixed_precision=mixed_precision, cpu=cpu
    )
    model = Net()
    optimizer = PathAdam(model, lr=1e-2)
    loader = DataLoader(sequences(), batch_size=16, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    losses = []
    for epoch in range(epochs):
        for x, y in loader:
            with accelerator.accumulate(model):
                loss = mse_loss(model(x), y)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item())
        accelerator.print(f"epoch {epoch}: loss {losses[-1]:.5f}")
    return losses


if __name__ == "__main__":
    main()
