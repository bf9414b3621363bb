"""A training loop without any harness.    python examples/plain.py"""

from __future__ import annotations

import torch
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader

from pathsgd import PathAdam
from task import Net, sequences


def train(epochs: int = 4) -> tuple[Net, list[float]]:
    torch.manual_seed(0)
    device = torch.accelerator.current_accelerator() or torch.device("cpu")
    model = Net().to(device)
    optimizer = PathAdam(model, lr=1e-2)
    losses = []
    for epoch in range(epochs):
        for x, y in DataLoader(sequences(), batch_size=32, shuffle=True):
            loss = mse_loss(model(x.to(device)), y.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(
                loss.detach()
            )  # a tensor: reading a number here would wait for the device
        print(f"epoch {epoch}: loss {losses[-1]:.5f}, gamma^2 = exp({optimizer.log_gamma_sq:.2f})")
    return model, [float(loss) for loss in losses]


if __name__ == "__main__":
    train()
