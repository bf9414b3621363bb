"""The share of all paths: what it adds up to, what it does not depend on, and pruning by it."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.nn.utils import prune

import pathsgd
from support import models
from support.cases import CASES


@pytest.mark.parametrize(
    "name", [name for name, case in CASES.items() if case.reference is not None]
)
def test_it_is_q_kappa1_over_gamma_sq(name: str) -> None:
    model, inputs = CASES[name].build(name), CASES[name].examples()
    kappa, gamma_sq = pathsgd.kappa(model, *inputs), pathsgd.gamma_sq(model, *inputs).detach()
    share = pathsgd.path_share(model, *inputs)
    for parameter, p in model.named_parameters():
        expected = p.detach().square() * kappa[parameter] / gamma_sq
        torch.testing.assert_close(share[parameter], expected, rtol=1e-9, atol=0)


def test_a_layer_that_every_path_crosses_has_them_all() -> None:
    share = pathsgd.path_share(models.mlp([3, 5, 4, 2], bias=False), torch.ones(1, 3))
    for value in share.values():
        assert value.sum().item() == pytest.approx(1, rel=1e-12)


def test_a_recurrent_matrix_counts_its_uses_at_any_length() -> None:
    """From the identity paths of s steps use it s - 1 times; all lengths to T weigh the same."""
    net = models.ReadRNN(1, 3, 1, bias=False)
    torch.nn.init.eye_(net.weight_hh_l0)
    share = pathsgd.path_share(net, torch.ones(2001, 1, 1))
    assert share["weight_hh_l0"].sum().item() == pytest.approx(1000, rel=1e-9)
    assert share["out.weight"].sum().item() == pytest.approx(1, rel=1e-9)


def test_rescaling_changes_no_share_and_so_no_mask() -> None:
    net, x = models.mlp([4, 16, 16, 2]).double(), torch.ones(1, 4, dtype=torch.float64)
    twin = pathsgd.random_rescaling(
        copy.deepcopy(net), x, generator=torch.Generator().manual_seed(0)
    )
    masks = {"path share": [], "magnitude": []}
    for model in (net, twin):
        share = pathsgd.path_share(model, x)
        for method, found in masks.items():
            pruned = copy.deepcopy(model)
            layers = {(pruned[k], "weight"): share[f"{k}.weight"] for k in (0, 2, 4)}
            scores = layers if method == "path share" else None
            prune.global_unstructured(
                list(layers), prune.L1Unstructured, importance_scores=scores, amount=0.5
            )
            found.append(torch.cat([layer.weight_mask.reshape(-1) for layer, _ in layers]))
            assert bool(
                pathsgd.gamma_sq(pruned, x) < pathsgd.gamma_sq(model, x)
            )  # pruned models can be measured
    assert bool((masks["path share"][0] == masks["path share"][1]).all())
    assert bool((masks["magnitude"][0] != masks["magnitude"][1]).any())


def test_no_path_no_share() -> None:
    net = models.mlp([2, 3, 1], bias=False)
    torch.nn.init.zeros_(net[2].weight)
    with pytest.raises(ValueError, match="no path reaches the output"):
        pathsgd.path_share(net, torch.ones(1, 2))
