"""Random sequences of operations on an optimiser, beside torch.optim on gradients over kappa.

The paper's rules are p <- p - lr grad / kappa, and Adam fed with grad / kappa. The reference is
torch's own SGD and Adam with kappa from the public function. Parameters are compared after every
step, and the reference continues from ours.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import pathsgd
from support.fuzz import fuzzed

TOLERANCE = {torch.float64: 1e-7, torch.float32: 2e-3}
TINY = 1e-30  # Adam's eps: ours is counted in units of gamma^2


class Rnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.out = nn.RNN(2, 3, nonlinearity="relu", batch_first=True), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.rnn(x)[0][:, -1])


class Tied(nn.Module):
    """One matrix in two places, and a parameter that is on no path."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.out = nn.Linear(3, 3), nn.Linear(3, 2)
        self.unused = nn.Parameter(torch.rand(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.relu(self.inner(torch.relu(self.inner(x)))))


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), (5, 3)),
    "conv": (
        lambda: nn.Sequential(nn.Conv2d(2, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2)),
        (2, 2, 3, 3),
    ),
    "rnn": (Rnn, (4, 3, 2)),
    "tied": (Tied, (5, 3)),
}


def make_ours(kind: str, net: nn.Module, params: Any, lr: float) -> torch.optim.Optimizer:
    if kind == "sgd":
        return pathsgd.PathSGD(net, lr, metric="paper", params=params)
    return pathsgd.PathAdam(
        net, lr, (0.9, 0.99), eps=TINY, weight_decay=0.1, metric="paper", params=params
    )


def make_reference(kind: str, params: Any, lr: float) -> torch.optim.Optimizer:
    if kind == "sgd":
        return torch.optim.SGD(params, lr, foreach=False)
    return torch.optim.AdamW(params, lr, (0.9, 0.99), eps=TINY, weight_decay=0.1, foreach=False)


class Twins:
    """Our optimiser and the reference, each on a copy of a net; two parameters may join later."""

    def __init__(self, kind: str, net: str, whole: bool) -> None:
        torch.manual_seed(0)
        self.kind, (build, self.shape), self.lr = kind, NETS[net], 1e-2
        self.ours = build().double()
        with torch.no_grad():
            for p in self.ours.parameters():
                p.abs_()  # no dead units, whose gradients are the noise of rounding
        self.reference = copy.deepcopy(self.ours)
        self.waiting = 0 if whole else 2
        self.optimizers = self.fresh()

    def pairs(self) -> list[tuple[nn.Parameter, nn.Parameter]]:
        return list(zip(self.ours.parameters(), self.reference.parameters()))

    def groups(self) -> list[list[list[nn.Parameter]]]:
        """Parameters of both nets, in one group or in two."""
        both = [list(net.parameters()) for net in (self.ours, self.reference)]
        if self.waiting == 0:
            return [[params] for params in both]
        return [[params[:-2], params[-2:]][: 1 if self.waiting == 2 else 2] for params in both]

    def fresh(self) -> list[torch.optim.Optimizer]:
        ours, theirs = ([{"params": params} for params in groups] for groups in self.groups())
        return [
            make_ours(self.kind, self.ours, ours, self.lr),
            make_reference(self.kind, theirs, self.lr),
        ]

    # ---- what may happen -------------------------------------------------------------------------

    def step(self, index: int) -> None:
        self._gradients()
        self._step_and_compare()

    def step_without_a_gradient(self, index: int) -> None:
        self._gradients()
        for p in self._pair(index):
            p.grad = None
        self._step_and_compare()

    def load(self, index: int) -> None:
        states = [pickle.loads(pickle.dumps(o.state_dict())) for o in self.optimizers]
        self.optimizers = self.fresh()
        for optimizer, state in zip(self.optimizers, states):
            optimizer.load_state_dict(state)

    def copy(self, index: int) -> None:
        self.ours, ours = pickle.loads(pickle.dumps((self.ours, self.optimizers[0])))
        self.reference, theirs = copy.deepcopy((self.reference, self.optimizers[1]))
        self.optimizers = [ours, theirs]

    def replace(self, index: int) -> None:
        p, _ = self._pair(index)
        p.data = p.data.clone()

    def lay_out_anew(self, index: int) -> None:
        p, _ = self._pair(index)
        p.data = p.data.transpose(0, -1).contiguous().transpose(0, -1)

    def take_every_second_number(self, index: int) -> None:
        p, _ = self._pair(index)
        p.data = torch.stack([p.data, p.data], -1)[..., 0]

    def freeze_or_thaw(self, index: int) -> None:
        for p in self._pair(index):
            p.requires_grad_(not p.requires_grad)
            p.grad = None

    def join(self, index: int) -> None:
        if self.waiting == 2:
            self.waiting = 1
            for optimizer, net in zip(self.optimizers, (self.ours, self.reference)):
                optimizer.add_param_group({"params": list(net.parameters())[-2:]})

    def change_rate(self, index: int) -> None:
        self.lr = (1e-2, 3e-3, 0.0)[index % 3]
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = self.lr

    def change_type(self, index: int) -> None:
        dtype = (torch.float32, torch.float64)[index % 2]
        for net, optimizer in zip((self.ours, self.reference), self.optimizers):
            net.to(dtype)
            optimizer.zero_grad()
            optimizer.load_state_dict(optimizer.state_dict())  # converts the state

    def change_shape(self, index: int) -> None:
        """Refused, and nothing has happened."""
        self._gradients()
        p, _ = self._pair(index)
        trained = {id(q) for group in self.optimizers[0].param_groups for q in group["params"]}
        if p.grad is None or id(p) not in trained:
            return
        kept, before = p.data, copy.deepcopy([q.data for q in self.ours.parameters()])
        p.data = p.data[:1].clone() if p.shape[0] > 1 else torch.cat([p.data, p.data])
        state = copy.deepcopy(self._moments())
        with pytest.raises((ValueError, RuntimeError)):
            self.optimizers[0].step()
        p.data = kept
        torch.testing.assert_close([q.data for q in self.ours.parameters()], before, rtol=0, atol=0)
        assert all(torch.equal(a, b) for a, b in zip(state, self._moments()))

    # ---- how -------------------------------------------------------------------------------------

    def _moments(self) -> list[Tensor]:
        return [
            v
            for s in self.optimizers[0].state.values()
            for k, v in s.of_rule().items()
            if k.startswith("exp_avg")
        ]

    def _pair(self, index: int) -> tuple[nn.Parameter, nn.Parameter]:
        pairs = self.pairs()
        return pairs[index % len(pairs)]

    def _gradients(self) -> None:
        p = next(self.ours.parameters())
        self.x = torch.rand(self.shape, dtype=p.dtype)
        for net in (self.ours, self.reference):
            net.zero_grad()
            out = net(self.x)
            if out.requires_grad:
                out.square().sum().backward()

    def _step_and_compare(self) -> None:
        kappa = pathsgd.kappa(self.reference, self.x)
        for name, q in self.reference.named_parameters():
            if q.grad is not None:
                q.grad = torch.where(kappa[name] > 0, q.grad / kappa[name], 0.0).to(q.dtype)
        for optimizer in self.optimizers:
            optimizer.step()
        for p, q in self.pairs():
            tolerance = TOLERANCE[p.dtype]
            torch.testing.assert_close(p, q, rtol=tolerance, atol=tolerance * 1e-2)
            q.data.copy_(p.data)


HAPPENINGS = [
    name for name in vars(Twins) if name[0] != "_" and name not in ("pairs", "groups", "fresh")
]


@fuzzed(0.22)
@given(
    st.sampled_from(["sgd", "adam"]),
    st.sampled_from(sorted(NETS)),
    st.booleans(),
    st.lists(st.tuples(st.sampled_from(HAPPENINGS), st.integers(0, 11)), max_size=14),
)
def test_sequences_of_operations(
    kind: str, net: str, whole: bool, happenings: list[tuple[str, int]]
) -> None:
    twins = Twins(kind, net, whole)
    for name, index in [("step", 0), *happenings, ("step", 0)]:
        getattr(twins, name)(index)


def test_the_unit_of_kappa_is_the_same_whoever_has_gradients() -> None:
    """Found by the test above: a step of the second group alone used another unit for kappa."""
    twins = Twins("adam", "conv", whole=False)
    for name, index in [("step", 0)] * 4 + [("join", 0), ("freeze_or_thaw", 5)] + [("step", 0)] * 2:
        getattr(twins, name)(index)
    twins.step_without_a_gradient(0)
