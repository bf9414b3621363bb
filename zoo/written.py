"""Models as people write them themselves: neuroscience, pairs, physics, generative nets."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.entry import CLASSES, Entry, Task, images


class NoisyDaleRNN(nn.Module):
    """A continuous-time rate network with excitatory and inhibitory units and state noise."""

    def __init__(
        self,
        inputs: int = 3,
        units: int = 50,
        outputs: int = 2,
        leak: float = 0.2,
        noise: float = 0.05,
    ):
        super().__init__()
        self.w_in = nn.Parameter(torch.rand(units, inputs) * 0.3)
        self.w_rec = nn.Parameter(torch.rand(units, units) * 0.1)
        self.bias = nn.Parameter(torch.zeros(units))
        self.out = nn.Linear(units, outputs)
        self.register_buffer("sign", torch.where(torch.arange(units) < 0.8 * units, 1.0, -4.0))
        self.leak, self.noise = leak, noise

    def forward(self, x: Tensor) -> Tensor:
        h, outputs = x.new_zeros(x.shape[1], self.bias.shape[0]), []
        for x_t in x:
            drive = (
                x_t @ self.w_in.abs().T + h.relu() @ (self.w_rec.abs() * self.sign).T + self.bias
            )
            h = (1 - self.leak) * h + self.leak * drive
            if self.training:
                h = h + self.noise * torch.randn_like(h)
            outputs.append(self.out(h.relu()))
        return torch.stack(outputs)


def _neuroscience() -> Task:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(30, 16, 3, generator=generator)
    y = torch.stack([x[:, :, 0].cumsum(0) > 0, x[:, :, 1].cumsum(0) > 0], -1).float()
    return Task(NoisyDaleRNN(), [(x, y)], lambda m, x, y: (m(x) - y).square().mean())


def _siamese() -> Task:
    batches = [
        (x.mean(1).flatten(1), x.roll(1, 0).mean(1).flatten(1), (y % 2).float())
        for x, y in images(8, 32)
    ]
    model = nn.Sequential(
        nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)
    )

    def contrastive(m: nn.Module, a: Tensor, b: Tensor, same: Tensor) -> Tensor:
        apart = (m(a) - m(b)).square().sum(1)
        return (same * apart + (1 - same) * F.relu(1 - apart)).mean()

    return Task(model, batches, contrastive)


def _physics() -> Task:
    """u'' is zero almost everywhere for ReLU units, so the equation is of first order: u' = cos."""
    x = torch.linspace(0, 3, 64)[:, None]
    model = nn.Sequential(
        nn.Linear(1, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)
    )

    def residual(m: nn.Module, x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        u = m(x)
        (slope,) = torch.autograd.grad(u.sum(), x, create_graph=True)
        return (slope - x.cos()).square().mean() + u[0].square().sum()

    return Task(model, [(x,)], residual)


class VAE(nn.Module):
    """The usual VAE: exp makes a standard deviation of half the code; halves are separate."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 16))
        self.decoder = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_variance = self.encoder(x).chunk(2, 1)
        z = mean + torch.randn_like(mean) * torch.exp(0.5 * log_variance)
        return self.decoder(z), mean, log_variance


def _elbo(m: nn.Module, x: Tensor) -> Tensor:
    made, mean, log_variance = m(x)
    return (made - x).square().mean() + 1e-2 * (
        mean.square() + log_variance.exp() - log_variance - 1
    ).mean()


def _vae() -> Task:
    batches = [(x.mean(1).flatten(1),) for x, _ in images(8, 32)]
    return Task(VAE(), batches, _elbo, options={"output": ["encoder", "decoder"]})


def _gan(part: str) -> Task:
    """One side of a GAN against the other as it starts: each has its own optimiser."""
    torch.manual_seed(2)
    generator = nn.Sequential(
        nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)
    )
    judge = nn.Sequential(nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
    noise = torch.randn(32, 8)
    real = [x.mean(1).flatten(1) for x, _ in images(8, 32)]
    if part == "generator":
        judge.requires_grad_(False)
        return Task(generator, [(noise,)], lambda m, z: F.softplus(-judge(m(z))).mean())
    made = generator(noise).detach()
    batches = [
        (torch.cat([x, made]), torch.cat([torch.ones(32, 1), torch.zeros(32, 1)])) for x in real
    ]
    return Task(judge, batches, lambda m, x, y: F.binary_cross_entropy_with_logits(m(x), y))


def _words() -> Task:
    generator = torch.Generator().manual_seed(1)
    words = torch.randint(0, 20, (16, 12), generator=generator)
    labels = torch.randint(0, CLASSES, (16,), generator=generator)

    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(20, 16)
            self.rnn = nn.RNN(16, 32, nonlinearity="relu", batch_first=True)
            self.out = nn.Linear(32, CLASSES)

        def forward(self, words: Tensor) -> Tensor:
            return self.out(self.rnn(self.words(words))[0][:, -1])

    return Task(Reader(), [(words, labels)], lambda m, w, y: F.cross_entropy(m(w), y))


def entries() -> Iterator[Entry]:
    yield Entry("neuroscience", "noisy Dale's-law CTRNN", _neuroscience)
    yield Entry("pairs", "siamese net", _siamese)
    yield Entry("physics", "PINN of first order", _physics)
    yield Entry("generative", "VAE", _vae)
    for part in ("generator", "judge"):
        yield Entry("generative", f"GAN, {part}", partial(_gan, part))
    yield Entry("text", "word RNN", _words)
