"""A state that went through torch.distributed.checkpoint continues the same run, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict

from support.continued import MODELS, OPTIMISERS, expect_the_same_run


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("steps", [4, 6], ids=["between measurements", "measurement due"])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("optimiser", OPTIMISERS)
def test_the_run_continues_from_a_distributed_checkpoint(
    optimiser: str, model: str, steps: int, flat: bool, tmp_path: Path
) -> None:
    options = StateDictOptions(flatten_optimizer_state_dict=flat)

    def move(net: Any, optimizer: Any, other: Any, again: Any) -> None:
        state = dict(zip(("model", "optimizer"), get_state_dict(net, optimizer, options=options)))
        dcp.save(state, checkpoint_id=tmp_path, no_dist=True)
        state = dict(zip(("model", "optimizer"), get_state_dict(other, again, options=options)))
        dcp.load(state, checkpoint_id=tmp_path, no_dist=True)
        set_state_dict(
            other,
            again,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
            options=options,
        )

    expect_the_same_run(model, OPTIMISERS[optimiser], steps, move)
