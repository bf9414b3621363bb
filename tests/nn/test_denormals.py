"""Denormal numbers count as zero in the kernel.

It computes what torch does after torch.set_flush_denormal(True).
"""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

import pathsgd.nn

TINY = {torch.float32: 1e-38, torch.float64: 2e-308}


def results(rnn: torch.nn.RNN, x: Tensor) -> list[Tensor]:
    x = x.clone().requires_grad_()
    states, last = rnn(x)
    (states.sum() + last.sum()).backward()
    return [states.detach(), x.grad, *(p.grad for p in rnn.parameters())]  # type: ignore[list-item]


@pytest.mark.parametrize("dtype", TINY)
@pytest.mark.parametrize("inputs", [2, 40])  # in the sweep, and by a product before it
def test_as_torch_flushes_them(native_kernel: str, inputs: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    theirs = torch.nn.RNN(inputs, 5, nonlinearity="relu", bias=False, dtype=dtype)
    ours, kept = pathsgd.nn.fuse(copy.deepcopy(theirs)), copy.deepcopy(theirs)
    x = torch.full((4, 3, inputs), TINY[dtype] / inputs, dtype=dtype)
    found = results(ours, x)
    assert torch.set_flush_denormal(True)
    try:
        flushed = results(theirs, x)
    finally:
        torch.set_flush_denormal(False)
    torch.testing.assert_close(found[1:], flushed[1:], rtol=0, atol=0)
    assert not any(t.any() for t in found[1:])
    assert (
        float(found[0].max()) < torch.finfo(dtype).tiny
    )  # a sum that torch made may still stand there
    assert all(
        t.any() for t in results(kept, x)
    )  # where they are kept, there are states and gradients
