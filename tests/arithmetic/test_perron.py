"""How powers of a nonnegative matrix grow."""

from __future__ import annotations

import pytest
import torch

from pathsgd.arithmetic.recurrence import log_growth

DOUBLE = torch.float64


def test_the_growth_rate_of_a_periodic_matrix() -> None:
    A = torch.tensor([[0.0, 4.0], [0.25, 0.0]], dtype=DOUBLE)
    assert log_growth(A, torch.ones(2, dtype=DOUBLE)) == pytest.approx(0.0, abs=1e-12)
    nilpotent = torch.tensor([[0.0, 1.0], [0.0, 0.0]], dtype=DOUBLE)
    assert log_growth(nilpotent, torch.ones(2, dtype=DOUBLE)) == -torch.inf
