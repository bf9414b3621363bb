"""Every path quantity on another device, for all cases: the CPU's values, on that device."""

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

# These models hold constants that stay on the CPU when the model is moved: torch refuses them too.
ON_THE_CPU = {
    "hand-written loop", "hand-written loop, every step", "copies", "there and back",
    "plus a constant", "plus in place", "subtract", "mul", "over", "lerp, entry by entry",
    "masked fill", "where", "index select", "gather", "take along", "cat", "index add",
    "index add, in place", "scatter add", "scatter reduce", "written entry by entry",
    "a fixed matrix", "units on constants", "masked weights", "the larger of two",
    "weights under constraints",
}  # fmt: skip


def moved(a: Any) -> Any:
    """An input on the device; lengths of sequences stay where they are."""
    return a.to(DEVICE) if isinstance(a, Tensor) and (a.dim() > 1 or a.is_floating_point()) else a


def both(name: str) -> tuple[nn.Module, tuple[Any, ...], nn.Module, tuple[Any, ...]]:
    model, inputs = CASES[name].build(name), CASES[name].examples()
    there = copy.deepcopy(model).to(DEVICE)
    return model, inputs, there, tree_map(moved, inputs)


@pytest.mark.parametrize("name", sorted(ON_THE_CPU))
def test_what_torch_refuses_is_no_model_for_a_device(name: str) -> None:
    *_, there, inputs = both(name)
    with pytest.raises(RuntimeError, match=r"Device|device"):
        there(*inputs)


@pytest.mark.parametrize("name", [name for name in CASES if name not in ON_THE_CPU])
def test_gamma_and_kappa_are_those_of_the_cpu(name: str) -> None:
    model, inputs, there, inputs_there = both(name)
    for quantity in (pathsgd.gamma_sq, pathsgd.log_gamma_sq, pathsgd.path_norm):
        wanted, found = quantity(model, *inputs), quantity(there, *inputs_there)
        assert found.device == DEVICE
        torch.testing.assert_close(to_cpu(found), wanted.detach(), rtol=1e-9, atol=0)
    wanted, found = (
        pathsgd.kappa(m, *x, terms="both") for m, x in ((model, inputs), (there, inputs_there))
    )
    assert wanted.keys() == found.keys()
    for parameter, value in wanted.items():
        assert found[parameter].device == DEVICE
        torch.testing.assert_close(to_cpu(found[parameter]), value.detach(), rtol=1e-9, atol=1e-300)
