"""Several optimisers of torch's as one, each with parameters of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class Together(torch.optim.Optimizer):
    """Steps all its members; groups and states are the members' own."""

    def __init__(self, *members: torch.optim.Optimizer) -> None:
        self.members = members
        super().__init__(
            [p for m in self.members for group in m.param_groups for p in group["params"]], {}
        )
        self.param_groups = [group for member in self.members for group in member.param_groups]

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One step of each member."""
        if closure is not None:
            raise ValueError("several optimisers as one take no closure: call backward before step")
        for member in self.members:
            member.step()

    def state_dict(self) -> dict[str, Any]:
        """The members' own, in order."""
        return {"members": [member.state_dict() for member in self.members]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue where ``state_dict`` was taken."""
        for member, state in zip(self.members, state_dict["members"], strict=True):
            member.load_state_dict(state)
        self.param_groups = [group for member in self.members for group in member.param_groups]
