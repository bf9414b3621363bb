"""Initialisers of recurrent matrices: the spectrum each promises, on matrices and on modules."""

from __future__ import annotations

import pytest
import torch

from pathsgd.nn import RNN, init


def test_identity() -> None:
    assert torch.equal(init.identity_(torch.rand(4, 4), 0.5), 0.5 * torch.eye(4))


def test_normalized_positive() -> None:
    weight = init.normalized_positive_(
        torch.empty(60, 60, dtype=torch.float64), torch.Generator().manual_seed(0)
    )
    values = torch.linalg.eigvalsh(weight)
    torch.testing.assert_close(weight, weight.t())
    assert values[0] > 0 and values[-1] == pytest.approx(1, abs=1e-12)
    # Marchenko-Pastur: the eigenvalues of A fill [0, 4], so those of W fill [1/5, 1].
    assert values[0] == pytest.approx(0.2, abs=0.03)


def test_orthogonal() -> None:
    weight = init.orthogonal_(torch.empty(20, 20, dtype=torch.float64), gain=2.0)
    torch.testing.assert_close(weight @ weight.t(), 4 * torch.eye(20, dtype=torch.float64))


@pytest.mark.parametrize(
    "initialise", [init.identity_, init.normalized_positive_, init.orthogonal_]
)
def test_a_module_gets_all_its_recurrent_matrices_set_and_nothing_else(initialise) -> None:  # type: ignore[no-untyped-def]
    module = RNN(3, 6, num_layers=2, bidirectional=True, nonlinearity="relu")
    before = {name: weight.clone() for name, weight in module.named_parameters()}
    assert initialise(module) is module
    for name, weight in module.named_parameters():
        assert torch.equal(weight, before[name]) != name.startswith("weight_hh")
        assert weight.requires_grad
    norms = [
        torch.linalg.matrix_norm(w, 2).item()
        for n, w in module.named_parameters()
        if n.startswith("weight_hh")
    ]
    assert norms == pytest.approx([1.0] * 4, abs=1e-5)


def test_a_generator_makes_it_repeatable() -> None:
    for initialise in (init.normalized_positive_, init.orthogonal_):
        first, again = (
            initialise(torch.empty(5, 5), generator=torch.Generator().manual_seed(1))
            for _ in range(2)
        )
        assert torch.equal(first, again)


def test_what_is_not_a_recurrent_matrix_is_refused() -> None:
    with pytest.raises(ValueError, match="square"):
        init.identity_(torch.empty(3, 4))
    with pytest.raises(TypeError, match="gates"):
        init.identity_(torch.nn.LSTM(3, 4))
