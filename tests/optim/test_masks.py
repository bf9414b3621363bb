"""Boolean and integer inputs: word indices, or structure (masks, lengths, counts) to follow."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pathsgd


class Masked(nn.Module):
    """A loop over (B, T, I) that keeps its state where the mask says so."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.w_in, self.w_rec, self.out = nn.Linear(2, 5), nn.Linear(5, 5), nn.Linear(5, 1)
        self.dtype = dtype

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        h = x.new_zeros(x.shape[0], 5)
        for t in range(x.shape[1]):
            keep = mask[:, t, None].to(x.dtype)
            h = keep * torch.relu(self.w_in(x[:, t]) + self.w_rec(h)) + (1 - keep) * h
        return self.out(h)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, *inputs: object) -> None:
    optimizer.zero_grad()
    model(*inputs).square().mean().backward()
    optimizer.step()


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("dtype", [torch.bool, torch.long, torch.uint8, torch.float32])
def test_recurrent_weights_move_under_a_mask(dtype: torch.dtype, given: bool) -> None:
    torch.manual_seed(2)
    model, x = Masked(dtype), torch.rand(3, 4, 2)
    mask = (torch.arange(4) < torch.tensor([[4], [2], [3]])).to(dtype)
    optimizer = pathsgd.PathAdam(model, lr=1e-2, example_inputs=(x, mask) if given else None)
    before = model.w_rec.weight.detach().clone()
    assert pathsgd.node_spaces(model, x, mask).count == 5
    step(model, optimizer, x, mask)
    assert bool((model.w_rec.weight != before).any())


def test_the_metric_follows_the_mask_and_not_which_row_is_first() -> None:
    torch.manual_seed(0)
    model, x = Masked(torch.bool).double(), torch.rand(3, 4, 2, dtype=torch.float64)
    mask = torch.arange(4) < torch.tensor([[4], [2], [3]])
    rows = [float(pathsgd.gamma_sq(model, x[:1], mask[k : k + 1])) for k in range(3)]
    assert len(set(rows)) == 3
    whole = pathsgd.gamma_sq(model, x, mask)
    torch.testing.assert_close(whole, torch.tensor(rows, dtype=torch.float64).mean())
    torch.testing.assert_close(pathsgd.gamma_sq(model, x, mask.flip(0)), whole)
    kappas = pathsgd.kappa(model, x, mask)
    for name, value in pathsgd.kappa(model, x, mask.flip(0)).items():
        torch.testing.assert_close(value, kappas[name])


def test_packing_inside_forward_counts_every_row() -> None:
    class Packs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.out = (
                nn.RNN(2, 3, nonlinearity="relu", batch_first=True),
                nn.Linear(3, 1),
            )

        def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
            packed = nn.utils.rnn.pack_padded_sequence(
                x, lengths, batch_first=True, enforce_sorted=False
            )
            return self.out(self.rnn(packed)[1][-1])

    torch.manual_seed(0)
    model, x = Packs().double(), torch.rand(2, 5, 2, dtype=torch.float64)
    one, other = torch.tensor([5, 2]), torch.tensor([2, 5])
    torch.testing.assert_close(pathsgd.gamma_sq(model, x, one), pathsgd.gamma_sq(model, x, other))
    alone = [pathsgd.gamma_sq(model, x[:1], torch.tensor([n])) for n in (5, 2)]
    torch.testing.assert_close(pathsgd.gamma_sq(model, x, one), torch.stack(alone).mean())


@pytest.mark.parametrize("shape", [(3,), (3, 1)])
def test_lengths_of_any_shape_are_structure(shape: tuple[int, ...]) -> None:
    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.out = nn.Linear(4, 4), nn.Linear(4, 1)

        def forward(self, x: Tensor, n: Tensor) -> Tensor:
            for _ in range(int(n.max())):
                x = torch.relu(self.cell(x))
            return self.out(x)

    model, x = Deep(), torch.rand(3, 4)
    optimizer = pathsgd.PathAdam(model, lr=0.0)
    for depth in (1, 3, 2):
        step(model, optimizer, x, torch.full(shape, depth))
        expected = pathsgd.log_gamma_sq(model, x, torch.full(shape, depth))
        torch.testing.assert_close(torch.tensor(optimizer.log_gamma_sq), expected.float())


class Labelled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.words = nn.Linear(3, 4), nn.Linear(4, 2), nn.Embedding(5, 4)

    def forward(self, x: Tensor, words: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.second(torch.relu(self.first(x) + self.words(words)))
        return logits, F.cross_entropy(logits, labels)


def test_words_and_labels_are_not_structure(monkeypatch: pytest.MonkeyPatch) -> None:
    """They change with every batch; the net does not, and is recorded once."""
    from pathsgd.network.record.recorder import Recorder

    made: list[int] = []
    plain = Recorder.__init__
    monkeypatch.setattr(
        Recorder, "__init__", lambda self, *a, **k: (made.append(1), plain(self, *a, **k))[1]
    )
    model = Labelled()
    optimizer = pathsgd.PathAdam(model, lr=1e-3)
    counts = []
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.rand(6, 3), torch.randint(0, 5, (6,)), torch.randint(0, 2, (6,)))[1].backward()
        optimizer.step()
        counts.append(len(made))
    assert counts[0] > 0 and counts[1:] == counts[:1] * 3


def test_objects_are_known_by_themselves_and_not_by_their_address() -> None:
    class Turns:
        def __init__(self, count: int) -> None:
            self.count = count

    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.out = nn.Linear(4, 4), nn.Linear(4, 1)

        def forward(self, x: Tensor, turns: Turns) -> Tensor:
            for _ in range(turns.count):
                x = torch.relu(self.cell(x))
            return self.out(x)

    model, x = Loop(), torch.rand(3, 4)
    optimizer = pathsgd.PathAdam(model, lr=0.0)
    for count in (1, 2, 3, 1, 3):
        step(
            model, optimizer, x, Turns(count)
        )  # freed at once: the next one may have the same address
        expected = pathsgd.log_gamma_sq(model, x, Turns(count))
        torch.testing.assert_close(torch.tensor(optimizer.log_gamma_sq), expected.float())


def test_images_of_bytes() -> None:
    class Bytes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.out = nn.Conv2d(1, 4, 3), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            x = (x.float() / 255 - 0.5) / 0.25
            return self.out(torch.relu(self.conv(x)).mean((2, 3)))

    model = Bytes()
    optimizer = pathsgd.PathAdam(model, lr=1e-2)
    assert pathsgd.node_spaces(model, torch.zeros(2, 1, 6, 6, dtype=torch.uint8)).count == 4
    before = model.conv.weight.detach().clone()
    step(model, optimizer, torch.randint(0, 256, (2, 1, 6, 6), dtype=torch.uint8))
    assert bool((model.conv.weight != before).any())
