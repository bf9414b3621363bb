"""Whether a rule takes a call, and what its results look like, told without data."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from pathsgd.network.rules import Refusal, Rule
from pathsgd.network.tape import Value, map_leaves


class NoRule(Exception):
    """No rule covers this operation, or not as it is called."""

    def __init__(self, operation: str, advice: str) -> None:
        super().__init__(operation)
        self.operation, self.advice = operation, advice


@lru_cache(maxsize=4096)
def check_call(rule: Rule, count: int, names: tuple[str, ...]) -> None:
    """Refuse a call that the rule's `squared` could not take, here where the operation can still be named."""
    try:
        inspect.signature(rule.squared).bind(None, *[None] * count, **dict.fromkeys(names))
    except TypeError as error:
        raise Refusal(
            f"its rule does not know this form of call ({error}); pass the usual arguments by position"
        ) from None


def results_of(
    func: Any, rule: Rule, args: Any, kwargs: Any
) -> tuple[list[Tensor], bool, Callable[[Any], Any]]:
    """Tensors without data of the results' shapes and dtypes, whether there is just one, and what torch puts them in.

    torch.max and its like return tuples with names.
    """

    def empty(a: Any) -> Any:
        if isinstance(a, Value):
            return torch.empty(a.shape, dtype=a.dtype, device="meta")
        if not isinstance(a, Tensor):
            return a
        return (
            a.to("meta") if a.is_floating_point() else a.cpu()
        )  # what integers hold may decide the shape

    with torch._C.DisableTorchFunction():
        result = rule.shape(func, *map_leaves(empty, (args, kwargs)))
    if isinstance(result, Tensor):
        return [result], True, tuple
    return (
        list(result),
        False,
        type(result) if type(result).__module__ == "torch.return_types" else tuple,
    )
