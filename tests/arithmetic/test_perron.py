"""Perron's root and vectors."""

from __future__ import annotations

import pytest
import torch

from pathsgd.arithmetic.perron import certified_powers, dominant, log_growth

DOUBLE = torch.float64


def test_the_growth_rate_of_a_periodic_matrix() -> None:
    A = torch.tensor([[0.0, 4.0], [0.25, 0.0]], dtype=DOUBLE)
    assert log_growth(A, torch.ones(2, dtype=DOUBLE)) == pytest.approx(0.0, abs=1e-12)
    nilpotent = torch.tensor([[0.0, 1.0], [0.0, 0.0]], dtype=DOUBLE)
    assert log_growth(nilpotent, torch.ones(2, dtype=DOUBLE)) == -torch.inf


def test_the_short_cut_is_taken_for_a_matrix_with_a_gap_and_not_for_the_identity() -> None:
    torch.manual_seed(0)
    dense, identity = (torch.randn(40, 40, dtype=DOUBLE) / 40**0.5).square(), torch.eye(40, dtype=DOUBLE)
    perron = dominant(dense)
    assert perron is not None
    powers = certified_powers(dense, perron, 48, 1e-6)
    assert powers is not None and 1 < len(powers) < 48
    # The certificate: from its power on, all powers are within the tolerance of rank one.
    for n in (len(powers), len(powers) + 7):
        power = torch.linalg.matrix_power(dense, n)
        limit = perron.root**n * torch.outer(perron.right, perron.left)
        assert float((power / limit - 1).abs().max()) <= 1.001e-6
    perron = dominant(identity)
    assert perron is None or certified_powers(identity, perron, 48, 1e-6) is None
