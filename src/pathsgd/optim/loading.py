"""States on their way into a state dict and back, and what is checked of them before an optimiser takes them over.

In a state dict every parameter that learns has the same entries, also one that no gradient has reached yet. So whoever
loads (torch.distributed.checkpoint fills the state dict of a new optimiser) knows what to look for. What only some
parameters have, a recurrent matrix above all, lies together in one entry `more`, as text.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from pathsgd.distributed.spread import is_sharded, own_like, own_part, spread_of
from pathsgd.kernels.update import compute_dtype

SHAPED = ("whitening", "exp_avg", "exp_avg_sq", "momentum_buffer")
"""States that have the shape of their parameter."""
_COUNTS = ("step", "age")
LARGEST_AGE = 1 << 40
"""The age of a metric that must be measured before the next step, whatever `refresh_every` is."""


def packed(state: Mapping[str, Any], p: Tensor) -> dict[str, Any]:
    """The state of a parameter as a state dict has it; what is spread over processes knows that it is."""
    spread = spread_of(p)
    result = {key: state[key] for key in (*_COUNTS, *SHAPED) if key in state}
    more = {key: value for key, value in state.items() if key not in result}
    if spread is not None:
        result |= {key: spread.joined(result[key], p) for key in SHAPED if key in result}
        if (
            more.pop("growth_ratio", None) is not None
        ):  # one process has only a part of it: it is measured again
            result["age"] = LARGEST_AGE
    file = io.BytesIO()
    torch.save(
        {key: value.cpu() if isinstance(value, Tensor) else value for key, value in more.items()},
        file,
    )
    return result | {"more": base64.b64encode(file.getvalue()).decode() if more else ""}


def opened(state_dict: Mapping[str, Any]) -> dict[str, Any]:
    """A state dict with the entries that `packed` put together."""
    states = {}
    for index, state in state_dict["state"].items():
        more = base64.b64decode(state.get("more", ""))
        known = torch.load(io.BytesIO(more), weights_only=True) if more else {}
        states[index] = {key: value for key, value in state.items() if key != "more"} | known
    return {**state_dict, "state": states}


def keep_own_parts(state: dict[str, Any], p: Tensor) -> None:
    """Of what is spread over processes, or was saved whole, keep this process's part."""
    if is_sharded(p):
        state.update({key: own_like(p, state[key]) for key in SHAPED if key in state})


def beginning(p: Tensor, moments: Sequence[str], age: int) -> dict[str, Any]:
    """The state of a parameter before its first step, with every entry that later ones have."""
    own = own_part(p.detach())
    zeros = {key: torch.zeros_like(own, dtype=compute_dtype(p.dtype)) for key in moments}
    return {"age": age, "whitening": torch.ones_like(own, dtype=compute_dtype(p.dtype)), **zeros}


def refuse_other_model(
    state_dict: Mapping[str, Any], groups: Sequence[Mapping[str, Any]], names: Mapping[int, str]
) -> None:
    """Refuse a state dict whose states have other shapes than the parameters they would go to.

    groups: the optimiser's; names: of the parameters, by their ids.
    """
    for saved, group in zip(state_dict["param_groups"], groups):
        params = group["params"]
        states = [state_dict["state"].get(index, {}) for index in saved["params"]]
        refuse_other_optimiser([names[id(p)] for p in params], states)
        for key in SHAPED:
            refuse_other_shapes(key, [names[id(p)] for p in params], params, states)


def refuse_other_optimiser(names: Sequence[str], states: Sequence[Mapping[str, Any]]) -> None:
    """Refuse moments that were not made in path geometry: those of Adam are of gradients, in other units."""
    for name, state in zip(names, states):
        if state and "whitening" not in state:
            raise ValueError(
                f"the state of parameter '{name}' ({', '.join(sorted(state))}) is not that of a path optimiser: "
                "moments of plain gradients (Adam's, SGD's) have other units; load the model's weights and start the "
                "optimiser anew"
            )


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
                if (
                    isinstance(value, Tensor)
                    and isinstance(loaded, Tensor)
                    and value.dtype != loaded.dtype
                ):
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
