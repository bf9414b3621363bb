"""What is checked of a state before an optimiser takes it over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

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
