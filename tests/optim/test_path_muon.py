"""PathMuon: Muon in path coordinates, and Adam for the rest."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from torch import nn

from pathsgd import PathAdam, PathMuon, check_invariance
from pathsgd.optim import InPathCoordinates
from pathsgd.optim.rules import muon


def net_of(*widths):
    pairs = itertools.pairwise(widths)
    layers = [layer for a, b in pairs for layer in (nn.Linear(a, b, bias=False), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def train(net, optimizer, count):
    generator = torch.Generator().manual_seed(0)
    for _ in range(count):
        p = next(net.parameters())
        x = torch.randn(16, p.shape[1], generator=generator, dtype=torch.float64).to(p.dtype)
        optimizer.zero_grad()
        net(x).sub(x.sum(1, keepdim=True)).square().mean().backward()
        optimizer.step()


def values(net):
    return torch.cat([p.detach().reshape(-1) for p in net.parameters()])


@pytest.mark.parametrize("adjust_lr_fn", ["original", "match_rms_adamw"])
def test_it_is_torch_s_muon_in_path_coordinates(adjust_lr_fn, monkeypatch):
    """With the iteration in bfloat16 in both."""
    monkeypatch.setattr(muon, "dtype_for", lambda x: torch.bfloat16)
    torch.manual_seed(0)
    net = net_of(5, 9, 7, 3).double()
    twin = copy.deepcopy(net)
    inner = torch.optim.Muon(twin.parameters(), 1e-2, weight_decay=0.1, adjust_lr_fn=adjust_lr_fn)
    train(net, PathMuon(net, 1e-2, weight_decay=0.1, adjust_lr_fn=adjust_lr_fn), 20)
    train(twin, InPathCoordinates(inner, twin), 20)
    torch.testing.assert_close(values(net), values(twin), rtol=0, atol=1e-4)


def test_without_muon_it_is_path_adam(rnn):
    twin = rnn.copy()
    rnn.train(PathMuon(rnn.model, 1e-2, use_muon=False), 10)
    rnn.train(PathAdam(twin, 1e-2), 10, twin)
    torch.testing.assert_close(values(rnn.model), values(twin), rtol=1e-12, atol=1e-12)


def test_groups_choose(rnn):
    head = [p for name, p in rnn.model.named_parameters() if name.startswith("out")]
    rest = [p for name, p in rnn.model.named_parameters() if not name.startswith("out")]
    groups = [{"params": rest}, {"params": head, "use_muon": False, "lr": 3e-3}]
    optimizer = PathMuon(rnn.model, 1e-2, params=groups)
    rnn.train(optimizer, 3)
    kinds = {p: type(state.rule).__name__ for p, state in optimizer.state.items()}
    assert all(kinds[p] == "AdamState" for p in head)
    assert all(kinds[p] == ("MuonState" if p.dim() > 1 else "AdamState") for p in rest)


def test_the_paper_s_metric_has_no_coordinates():
    with pytest.raises(ValueError, match="metric"):
        PathMuon(net_of(3, 4, 2), metric="paper")


def test_training_is_invariant(case):
    report = check_invariance(case.model, case.x, optimizer=lambda m: PathMuon(m, 1e-2))
    assert report.ok, report
