"""Where tensors that carry no paths come from: the model's inputs, whose values may be structure; and dice.

A boolean or integer input, and whatever is made of it, is either only looked up (words in an embedding) or structure: a
mask, lengths, the edges of a graph. Which of the two shows when it is used. A random number made in forward is noise.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Origin:
    """inputs: the numbers of the inputs from whose values a tensor was made; noise: whether dice were thrown for it."""

    inputs: frozenset[int] = frozenset()
    noise: bool = False


PLAIN = Origin()
RANDOM = frozenset([
    "rand", "randn", "randint", "rand_like", "randn_like", "randint_like", "normal", "bernoulli", "poisson", "binomial",
    "uniform", "exponential", "log_normal", "cauchy", "geometric", "random", "multinomial", "randperm",
])  # fmt: skip
"""Operations that throw dice."""
LEAVING = frozenset([
    "item", "tolist", "numpy", "__bool__", "__float__", "__int__", "__index__", "__array__", "__contains__",
    "is_nonzero", "equal", "allclose",
])  # fmt: skip
"""Operations that hand a value to Python, where it may steer the forward pass."""
SHAPED_BY_VALUES = frozenset([
    "nonzero", "argwhere", "unique", "unique_consecutive", "masked_select", "bincount", "repeat_interleave",
])  # fmt: skip
"""Operations whose result has a shape that depends on values."""


class Origins:
    """The origins of plain tensors, by themselves: holding a tensor keeps its id its own."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Tensor, Origin]] = {}

    def note(self, tensor: Tensor, origin: Origin) -> None:
        """This tensor comes from there."""
        if origin != PLAIN:
            self._known[id(tensor)] = (tensor, origin)

    def of(self, tensor: Tensor) -> Origin:
        """Where a tensor comes from; PLAIN for constants."""
        return self._known.get(id(tensor), (tensor, PLAIN))[1]


def joined(origins: Iterable[Origin], *, noise: bool = False) -> Origin:
    """Where something comes from that is made of several."""
    every = list(origins)
    return Origin(
        frozenset().union(*(o.inputs for o in every)), noise or any(o.noise for o in every)
    )
