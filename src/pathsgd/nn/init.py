"""Initialisers for recurrent weights.

Each takes a (H, H) matrix, or an nn.RNN whose recurrent matrices it all sets.
"""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor

Target = TypeVar("Target", Tensor, torch.nn.RNNBase)


def _recurrent_matrices(target: Tensor | torch.nn.RNNBase) -> list[Tensor]:
    if isinstance(target, torch.nn.RNNBase):
        if not isinstance(target, torch.nn.RNN):
            raise TypeError(
                f"{type(target).__name__} has gates: its recurrent weights are not one square "
                "matrix"
            )
        return [
            weight for name, weight in target.named_parameters() if name.startswith("weight_hh")
        ]
    if target.dim() != 2 or target.shape[0] != target.shape[1]:
        raise ValueError(f"a recurrent matrix is square, not {tuple(target.shape)}")
    return [target]


@torch.no_grad()
def identity_(target: Target, scale: float = 1.0) -> Target:
    """W = scale * I, so that a ReLU net at first keeps its state (Le, Jaitly & Hinton, 2015)."""
    for weight in _recurrent_matrices(target):
        weight.zero_()
        weight.diagonal().fill_(scale)
    return target


@torch.no_grad()
def normalized_positive_(target: Target, generator: torch.Generator | None = None) -> Target:
    """W = (A + I) / e, A = R R^T / H, R standard normal (Talathi & Vartak, 2016).

    e is the largest eigenvalue of A + I.

    Symmetric and positive definite, eigenvalues in (0, 1], the largest exactly 1: one direction is
    kept for ever, the others fade.
    """
    for weight in _recurrent_matrices(target):
        size = weight.shape[0]
        normal = torch.randn(size, size, dtype=torch.float64, generator=generator)
        shifted = normal @ normal.t() / size + torch.eye(size, dtype=torch.float64)
        weight.copy_(shifted / torch.linalg.eigvalsh(shifted)[-1])
    return target


@torch.no_grad()
def orthogonal_(
    target: Target, gain: float = 1.0, generator: torch.Generator | None = None
) -> Target:
    """W = gain * Q with Q uniform among orthogonal matrices.

    Torch.nn.init.orthogonal_ on each recurrent matrix.
    """
    for weight in _recurrent_matrices(target):
        torch.nn.init.orthogonal_(weight, gain, generator)
    return target
