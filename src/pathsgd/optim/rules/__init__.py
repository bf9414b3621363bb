"""Rules: what an optimiser makes of whitened gradients.

    u = grad / sqrt(K)        d = direction(u, state, settings)        p <- p - lr * d / sqrt(K)

One file for each rule: a dataclass of what is remembered for a parameter, and functions of whitened
gradients. Whitened gradients do not change when units are rescaled, so neither do their directions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from pathsgd.kernels.update import UpdateRule

Settings = Mapping[str, Any]
"""The options of a parameter group (lr, betas, ...), as they are at this step."""


@dataclass(frozen=True)
class Fused:
    """A rule as the kernels compute it: lr * d is `length` times the direction of `update`."""

    update: UpdateRule
    length: float
    moments: tuple[str, ...] = ()
    """Fields of the state that hold the first and the second moment."""


class Rule:
    """Base class. A state is a dataclass whose fields are tensors, ints or floats.

    A field that is None is not saved. Whether it is None must follow from the parameter's shape and
    from the settings, so that a new optimiser knows what a checkpoint holds.
    """

    is_elementwise: ClassVar[bool] = False
    """Each entry of d depends only on that entry of u, and the state's tensors have the shape of u.

    Then sharded parameters are updated shard by shard. Otherwise one process gathers u, computes d
    and keeps the state up to date (distributed/owners.py).
    """
    powers: ClassVar[Mapping[str, int]] = {}
    """Powers of c by which the state's tensors scale with p -> c p when fed with grad / kappa."""

    def check(self, settings: Settings) -> None:
        """Refuse settings that make no sense, with a ValueError."""

    def init(self, like: Tensor, settings: Settings) -> Any:
        """The state of a new parameter. like: has its shape and device, and the dtype of u."""
        raise NotImplementedError

    def arrange(self, joining: Sequence[Any], known: Sequence[Any], settings: Settings) -> None:
        """Called when other parameters of a group have gradients than in the last step.

        joining: the states of those that have. known: of all that have any.
        """

    def loaded(self, state: Any) -> None:
        """Called for a state that was read from a checkpoint, perhaps of other options."""

    def direction(self, u: Tensor, state: Any, settings: Settings) -> Tensor:
        """d in the shape of u (a vector, a matrix, a convolution); brings `state` up to date.

        u is clipped, of a dtype to compute in, and may be overwritten.
        """
        raise NotImplementedError

    def fused(
        self, state: Any, settings: Settings, lr: float, *, corrected: bool = True
    ) -> Fused | None:
        """The same for the kernels; None for a rule that only `direction` computes.

        corrected: whether what depends on the number of steps is in it; else the device adds that.
        """
        return None
