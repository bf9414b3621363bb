"""Power iteration for the largest singular value."""

import math

import pytest
import torch

from pathsgd.kernels.spectral_norm import spectral_norm


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_the_spectral_norm_is_found_within_a_few_calls(scale):
    """float32, where the squares of such entries would be zero or infinite."""
    torch.manual_seed(0)
    matrix, direction = torch.randn(6, 9) * scale, torch.ones(9)
    for _ in range(10):
        found, direction = spectral_norm(matrix, direction)
        assert found <= torch.linalg.matrix_norm(matrix.double(), 2).item() * (1 + 1e-5)
    assert found == pytest.approx(torch.linalg.matrix_norm(matrix.double(), 2).item(), rel=1e-3)


def test_the_spectral_norm_of_nothing_keeps_its_direction():
    start = torch.ones(3)
    assert spectral_norm(torch.zeros(2, 3), start) == (0.0, start)
    assert math.isnan(spectral_norm(torch.full((2, 3), math.nan), start)[0])
