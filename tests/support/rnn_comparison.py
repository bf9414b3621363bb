"""The same recurrent net as torch's module and as ours, its data, and the results of both."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_sequence

import pathsgd.nn

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}


def build(draw: dict[str, Any]) -> tuple[torch.nn.RNN, torch.nn.RNN]:
    """torch's module and ours, with the same weights."""
    names = (
        "input_size",
        "hidden_size",
        "num_layers",
        "bias",
        "batch_first",
        "bidirectional",
        "dropout",
        "dtype",
    )
    options = {name: draw[name] for name in names if name in draw}
    theirs = torch.nn.RNN(nonlinearity="relu", **options)
    ours = pathsgd.nn.RNN(nonlinearity="relu", **options)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


class Data(NamedTuple):
    """Sequences x (T, B, I) of which the first `lengths` steps count, and h0 (L*D, B, H)."""

    x: Tensor
    h0: Tensor | None
    lengths: list[int]
    kind: str
    batch_first: bool

    def arguments(self) -> tuple[Any, Tensor | None]:
        """What the module is called with."""
        if self.kind == "packed":
            sequences = [self.x[:n, i] for i, n in enumerate(self.lengths)]
            return pack_sequence(sequences, enforce_sorted=False), self.h0
        if self.kind == "unbatched":
            return self.x[:, 0], None if self.h0 is None else self.h0[:, 0]
        return self.x.transpose(0, 1) if self.batch_first else self.x, self.h0


def make_data(draw: dict[str, Any]) -> Data:
    batch, dtype = 1 if draw["kind"] == "unbatched" else draw["batch"], draw["dtype"]
    lengths = [draw["steps"]] * batch
    if draw["kind"] == "packed":
        lengths = [
            min(draw["lengths"][i % len(draw["lengths"])], draw["steps"]) for i in range(batch)
        ]
    states = (draw["num_layers"] * (1 + draw["bidirectional"]), batch, draw["hidden_size"])
    x = torch.randn(
        max(lengths), batch, draw["input_size"], dtype=dtype, requires_grad=draw["needs_x"]
    )
    h0 = (
        torch.randn(states, dtype=dtype, requires_grad=draw["needs_h0"])
        if draw["with_h0"]
        else None
    )
    return Data(x, h0, lengths, draw["kind"], draw["batch_first"])


@torch.no_grad()
def distance_to_a_kink(module: torch.nn.RNN, data: Data) -> float:
    """Smallest relu input relative to the largest: rounding may flip the sign of a tiny one."""
    weights = {name: weight.double() for name, weight in module.named_parameters()}
    steps, batch, _ = data.x.shape
    smallest, largest, number, below = torch.inf, 0.0, 0, data.x.detach().double()
    for layer in range(module.num_layers):
        above = []
        for suffix in ("", "_reverse")[: 1 + module.bidirectional]:
            w_in, w_rec = (weights[f"weight_{kind}_l{layer}{suffix}"] for kind in ("ih", "hh"))
            bias = (
                sum(weights[f"bias_{kind}_l{layer}{suffix}"] for kind in ("ih", "hh"))
                if module.bias
                else 0.0
            )
            h = (
                torch.zeros(batch, module.hidden_size).double()
                if data.h0 is None
                else data.h0[number].double()
            )
            states = [h] * steps
            for t in reversed(range(steps)) if suffix else range(steps):
                alive = t < torch.tensor(data.lengths)[:, None]
                z = below[t] @ w_in.t() + bias + h @ w_rec.t()
                h = torch.where(alive, z.relu(), h)
                states[t] = h
                sizes = z.abs()[alive.expand_as(z)]
                smallest, largest = (
                    min(smallest, sizes.min().item()),
                    max(largest, sizes.max().item()),
                )
            above.append(torch.stack(states))
            number += 1
        below = torch.cat(above, dim=2)
    return smallest / largest


def results(module: torch.nn.RNN, data: Data, loss: str) -> list[Tensor]:
    """Output, h_n, and the gradients of a random loss on one or both of them."""
    torch.manual_seed(1)  # the same dropout and the same loss for both modules
    output, h_n = module(*data.arguments())
    output = output.data if isinstance(output, PackedSequence) else output
    total = data.x.new_zeros(())
    if loss in ("output", "both"):
        total = total + (output * torch.randn_like(output)).sum()
    if loss in ("h_n", "both"):
        total = total + (h_n * torch.randn_like(h_n)).sum()
    leaves = [
        t for t in (data.x, data.h0, *module.parameters()) if t is not None and t.requires_grad
    ]
    return [output, h_n, *torch.autograd.grad(total, leaves)]


def assert_same(ours: list[Tensor], theirs: list[Tensor], tolerance: float) -> None:
    """Each tensor differs by at most `tolerance` of its norm.

    A tensor a hundred times smaller than the rest of the gradient results from cancellation: its
    rounding errors are those of larger numbers, so it is compared at a hundredth of their size.
    """
    assert [t.shape for t in ours] == [t.shape for t in theirs] and [t.dtype for t in ours] == [
        t.dtype for t in theirs
    ]
    for group in (slice(0, 2), slice(2, None)):  # outputs, gradients
        largest = max(b.norm() for b in theirs[group])
        for a, b in zip(ours[group], theirs[group]):
            assert (a - b).norm() <= tolerance * max(b.norm(), largest / 100)
