"""The one table of cases. Each rule is used by at least one; each has independent oracles:

- its twin, a model whose ordinary forward pass with squared parameters on all-ones inputs is the
  squared network (by default the model itself), differentiated by torch;
- an explicit graph of oracle, where one is given, whose paths are enumerated.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oracle import build
from support import graphs, models
from support.casework import Case, between, ones
from support.models import Apply, Weights
from support.operations import OPERATIONS

NETS: dict[str, Case] = {
    "mlp": Case(lambda: models.mlp([3, 2, 2, 2]), ((1, 3),),
                reference=lambda: build.mlp([3, 2, 2, 2])),
    "mlp without bias": Case(
        lambda: models.mlp([2, 3, 1], bias=False), ((1, 2),),
        reference=lambda: build.mlp([2, 3, 1], bias=False)
    ),
    "mlp with in-place units": Case(
        lambda: models.mlp([2, 3, 2], inplace=True), ((1, 2),),
        reference=lambda: build.mlp([2, 3, 2])
    ),
    "mlp, unbatched": Case(lambda: models.mlp([2, 3, 1]), ((2,),), None,
                           reference=lambda: build.mlp([2, 3, 1])),
    "conv1d": Case(models.ConvNet, ((1, 2, 5),),
                   reference=lambda: build.conv1d(2, 2, 3, 5, 1, 2, outputs=2)),
    "residual": Case(
        lambda: models.Residual(2, 2, 2, 2, 2), ((1, 2),),
        reference=lambda: build.residual(2, 2, 2, 2, blocks=2)
    ),
    "chain": Case(lambda: models.Chain(3), ((1, 1),), reference=lambda: build.chain(3),
                  fewer_nodes=True),
    "rnn": Case(
        lambda: models.ReadRNN(2, 2, 2), ((4, 1, 2),), 1,
        reference=lambda: build.rnn(2, [2], 2, steps=4)
    ),
    "rnn, every step, no bias": Case(
        lambda: models.ReadRNN(2, 2, 1, True, bias=False, batch_first=True), ((1, 3, 2),),
        reference=lambda: build.rnn(2, [2], 1, steps=3, bias=False, every_step=True),
    ),
    "deep rnn": Case(
        lambda: models.ReadRNN(1, 2, 1, num_layers=2, dropout=0.5), ((3, 1, 1),), 1,
        reference=lambda: build.rnn(1, [2, 2], 1, steps=3),
    ),
    "bidirectional rnn": Case(
        lambda: models.ReadRNN(1, 2, 1, True, bidirectional=True), ((3, 1, 1),), 1,
        reference=lambda: build.rnn(1, [2], 1, steps=3, bidirectional=True, every_step=True),
    ),
    "deep bidirectional rnn, last step": Case(
        lambda: models.ReadRNN(1, 1, 1, num_layers=2, bidirectional=True), ((3, 1, 1),), 1,
        reference=lambda: build.rnn(1, [1, 1], 1, steps=3, bidirectional=True),
    ),
    "rnn read by its states": Case(
        lambda: models.ReadRNN(1, 2, None, True), ((3, 1, 1),), 1,
        reference=lambda: build.rnn(1, [2], None, steps=3, every_step=True),
    ),
    "rnn, unbatched": Case(
        lambda: models.ReadRNN(2, 2, 2), ((4, 2),), None,
        reference=lambda: build.rnn(2, [2], 2, steps=4)
    ),
    "rnn with a learnt initial state": Case(
        lambda: models.LearntStart(1, 2), ((3, 1, 1),), 1,
        reference=lambda: graphs.learnt_start(1, 2, 3)
    ),
    "hand-written loop": Case(
        lambda: models.HandLoop(2, 2, 1), ((3, 1, 2),), 1,
        reference=lambda: graphs.hand_loop(2, 2, 1, 3, False)
    ),
    "hand-written loop, every step": Case(
        lambda: models.HandLoop(1, 2, 1, True), ((3, 1, 1),), 1,
        reference=lambda: graphs.hand_loop(1, 2, 1, 3, True),
    ),
    "hand-written loop from a learnt state": Case(lambda: models.StartedLoop(2, 2), ((3, 1, 2),),
        1),
    "rnn cell in a loop": Case(lambda: models.CellLoop(2, 2, 1), ((1, 3, 2),)),
    "packed sequence": Case(
        lambda: models.Packed(2, 2, num_layers=2, bidirectional=True),
        ((1, 4, 2), torch.tensor([3]))
    ),
    "tied autoencoder": Case(
        lambda: models.TiedAutoencoder(2, 3), ((1, 2),),
        reference=lambda: graphs.tied_autoencoder(2, 3)
    ),
    "tied language model": Case(
        lambda: models.TiedLanguageModel(3, 2), (torch.zeros(1, 3, dtype=torch.long),),
        twin=lambda: models.OnesLanguageModel(3, 2), twin_inputs=(ones(1, 3, 3),),
        reference=lambda: graphs.tied_language_model(3, 2, 3), fewer_nodes=True,
    ),
    "a layer called twice": Case(
        lambda: models.CalledTwice(2), ((1, 2),), reference=lambda: graphs.called_twice(2)
    ),
    "batch norm": Case(
        lambda: nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 2)),
        ((1, 2),),
        twin=lambda: nn.Sequential(nn.Linear(2, 3), SquaredNorm(3), nn.ReLU(), nn.Linear(3, 2)),
        reference=lambda: graphs.batch_norm(*statistics("batch norm")),
    ),
    "batch norm that trains": Case(
        lambda: Training(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 2)), ((1, 2),),
        twin=lambda: nn.Sequential(nn.Linear(2, 3), DividedNorm(3), nn.ReLU(), nn.Linear(3, 2)),
    ),
    "batch norm that trains, channels": Case(
        lambda: Training(
            nn.Conv1d(2, 3, 2, padding=1), nn.BatchNorm1d(3, track_running_stats=False),
            nn.Conv1d(3, 1, 2)
        ),
        ((1, 2, 3),),
        twin=lambda: nn.Sequential(
            nn.Conv1d(2, 3, 2, padding=1), DividedNorm(3, track_running_stats=False),
            nn.Conv1d(3, 1, 2)
        ),
    ),
    "a mean on the graph": between(
        lambda h: h.mean(1, keepdim=True), reference=lambda: graphs.between([[0, 1, 2, 3]], 1 / 4)
    ),
    "a max pool on the graph": between(
        lambda h: F.max_pool1d(h, 2, 1), 1, 4,
        reference=lambda: graphs.between([[0, 1], [1, 2], [2, 3]], 1.0)
    ),
    "an average pool on the graph": between(
        lambda h: F.avg_pool1d(h, 2), 1, 4, fewer_nodes=True,
        reference=lambda: graphs.between([[0, 1], [2, 3]], 1 / 2),
    ),
    "two inputs": Case(
        partial(Weights, lambda m, x, y: F.relu(x @ m.a.T + y @ m.b.T) @ m.c.T, a=(3, 2), b=(3, 1),
                c=(1, 3)),
        ((1, 2), (1, 1)), reference=graphs.two_inputs,
    ),
}  # fmt: skip


def statistics(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation that the case's batch norm works with."""
    norm = NETS[name].build(name).get_submodule("1")
    return norm.running_mean.numpy(), (norm.running_var + norm.eps).sqrt().numpy()


class SquaredNorm(nn.BatchNorm1d):
    """Batch norm's inference form as a squared network: q (x / std^2 + (mean / std)^2) + q_bias."""

    def forward(self, x: Tensor) -> Tensor:
        column = [1, -1] + [1] * (x.dim() - 2)
        var = (self.running_var + self.eps).reshape(column)
        y = x / var + self.running_mean.reshape(column) ** 2 / var
        return (
            y
            if self.weight is None
            else y * self.weight.reshape(column) + self.bias.reshape(column)
        )


class Training(nn.Sequential):
    """A model that is always in training mode."""

    def train(self, mode: bool = True) -> nn.Module:
        return super().train(True)


class DividedNorm(nn.BatchNorm1d):
    """Batch norm's training form as a squared network: q x / [channel mean of x] + q_bias."""

    def forward(self, x: Tensor) -> Tensor:
        column = [1, -1] + [1] * (x.dim() - 2)
        size = x.detach().mean([d for d in range(x.dim()) if d != 1], keepdim=True)
        return x / size * self.weight.reshape(column) + self.bias.reshape(column)


def lookup(
    model: Callable[[], nn.Module], words: Tensor, twin: Callable[..., Tensor], *shape: int
) -> Case:
    """Integer inputs; the twin reads ones over the vocabulary instead."""
    return Case(model, (words,), twin=lambda: Readable(model(), twin), twin_inputs=(ones(*shape),))


class Readable(nn.Module):
    """Another forward for a model, with its parameters' names."""

    def __init__(self, model: nn.Module, forward: Callable[..., Tensor]) -> None:
        super().__init__()
        for name, child in model.named_children():
            self.add_module(name, child)
        for name, p in model.named_parameters(recurse=False):
            self.register_parameter(name, p)
        self.function = forward

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


WORDS = torch.zeros(1, 3, dtype=torch.long)
LOOKUPS: dict[str, Case] = {
    "embedding": lookup(
        lambda: nn.Sequential(nn.Embedding(4, 2, padding_idx=0), nn.Linear(2, 2)), WORDS,
        lambda m, x: m.get_submodule("1")(x @ m.get_submodule("0").weight), 1, 3, 4,
    ),
    "embedding bag, sum": lookup(
        lambda: nn.Sequential(nn.EmbeddingBag(4, 2, mode="sum"), nn.Linear(2, 2)), WORDS,
        lambda m, x: m.get_submodule("1")((x @ m.get_submodule("0").weight).sum(1)), 1, 3, 4,
    ),
    "embedding bag, mean": lookup(
        lambda: nn.Sequential(nn.EmbeddingBag(4, 2), nn.Linear(2, 2)), WORDS,
        lambda m, x: m.get_submodule("1")((x @ m.get_submodule("0").weight).sum(1) / 9), 1, 3, 4,
    ),
    "one-hot words": lookup(
        lambda: nn.Sequential(Apply(lambda w: F.one_hot(w, 4).double()), nn.Linear(4, 2)), WORDS,
        lambda m, x: m.get_submodule("1")(x), 1, 3, 4,
    ),
}  # fmt: skip

CASES: dict[str, Case] = {**NETS, **LOOKUPS, **OPERATIONS}
