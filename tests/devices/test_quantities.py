"""Every path quantity on another device, for the whole table of cases: what the CPU gives, and on that device."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

import pathsgd
from support.cases import CASES
from support.device import DEVICE, to_cpu


def both(name: str) -> tuple[nn.Module, tuple[Any, ...], nn.Module, tuple[Any, ...]]:
    model, inputs = CASES[name].build(name), CASES[name].examples()
    there = copy.deepcopy(model).to(DEVICE)
    return model, inputs, there, tree_map(lambda a: a.to(DEVICE) if isinstance(a, Tensor) else a, inputs)


@pytest.mark.parametrize("name", list(CASES))
def test_gamma_and_kappa_are_those_of_the_cpu(name: str) -> None:
    model, inputs, there, inputs_there = both(name)
    for quantity in (pathsgd.gamma_sq, pathsgd.log_gamma_sq, pathsgd.path_norm):
        wanted, found = quantity(model, *inputs), quantity(there, *inputs_there)
        assert found.device == DEVICE
        torch.testing.assert_close(to_cpu(found), wanted.detach(), rtol=1e-9, atol=0)
    wanted, found = (pathsgd.kappa(m, *x, terms="both") for m, x in ((model, inputs), (there, inputs_there)))
    assert wanted.keys() == found.keys()
    for parameter, value in wanted.items():
        assert found[parameter].device == DEVICE
        torch.testing.assert_close(to_cpu(found[parameter]), value.detach(), rtol=1e-9, atol=1e-300)
