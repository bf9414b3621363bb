"""What is checked of a state before an optimiser takes it over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from pathsgd._native import compute_dtype

SHAPED = ("whitening", "exp_avg", "exp_avg_sq", "momentum_buffer")
"""States that have the shape of their parameter."""


def refuse_other_model(
    state_dict: Mapping[str, Any], groups: Sequence[Mapping[str, Any]], names: Mapping[int, str]
) -> None:
    """Refuse a state dict whose states have other shapes than the parameters they would go to.

    groups: the optimiser's; names: of the parameters, by their ids.
    """
    for saved, group in zip(state_dict["param_groups"], groups):
        params = group["params"]
        states = [state_dict["state"].get(index, {}) for index in saved["params"]]
        for key in SHAPED:
            refuse_other_shapes(key, [names[id(p)] for p in params], params, states)


def keep_precision(
    state_dict: Mapping[str, Any], groups: Sequence[Mapping[str, Any]], state: Mapping[Tensor, Any]
) -> None:
    """Give parameters in half precision the states back that torch has rounded to the parameters' dtype."""
    for saved, group in zip(state_dict["param_groups"], groups):
        for index, p in zip(saved["params"], group["params"]):
            if compute_dtype(p.dtype) == p.dtype:
                continue
            for key, value in state_dict["state"].get(index, {}).items():
                loaded = state[p].get(key)
                if isinstance(value, Tensor) and isinstance(loaded, Tensor) and value.dtype != loaded.dtype:
                    state[p][key] = value.to(device=loaded.device, copy=True)


def refuse_other_shapes(
    key: str, names: Sequence[str], params: Sequence[Tensor], states: Sequence[Mapping[str, Any]]
) -> None:
    """Refuse states `key` that have not the shapes of their parameters."""
    for name, p, state in zip(names, params, states):
        if key in state and state[key].shape != p.shape:
            raise ValueError(
                f"parameter '{name}' has shape {tuple(p.shape)} and its state '{key}' {tuple(state[key].shape)}: the "
                "state is that of another model, or the parameter was replaced; make a new optimiser"
            )
