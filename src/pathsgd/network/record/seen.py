"""Calls that a recording has seen before: the turns of a loop call the same things again and again.

What becomes of a call depends on the kinds, shapes and dtypes of its operands, on which parameters are among them, and
on plain arguments. Another call with all of these the same has results of the same shapes, and nothing to be refused
for, so neither torch nor the rule is asked again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from pathsgd.network.record.path_tensor import PathTensor
from pathsgd.network.rules import Kind, Rule
from pathsgd.network.tape import Value

_PLAIN = frozenset({int, float, bool, str, type(None), torch.dtype})


@dataclass(frozen=True)
class Seen:
    """A call that became a step: its rule, and what it made.

    kind, shapes: of its results, which are values all. single: whether there is just one; pack: what torch puts several
    in. known: whether it was made of inputs alone, so that the values of its results are known as well.
    """

    name: str
    rule: Rule
    kind: Kind
    shapes: list[tuple[torch.Size, torch.dtype]]
    single: bool
    pack: Callable[[Any], Any]
    known: bool

    def outputs(self) -> tuple[Value, ...]:
        """New values for the results of another such call."""
        return tuple([Value(self.kind, shape, dtype) for shape, dtype in self.shapes])


def key_of(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], parameters: Mapping[int, str]
) -> Any:
    """What tells a call from others; None for calls with constant tensors or nested arguments, which are not kept."""
    key: list[Any] = [func, len(args)]
    for a in (*args, *kwargs.values()) if kwargs else args:
        kind = type(a)
        if kind is PathTensor:
            value = a.value
            if type(value) is not Value:  # lost
                return None
            # Of what is made of inputs alone the values are known, and a product may take them for constants.
            key.append((value.kind, value.shape, value.dtype, a.known is None))
        elif kind in _PLAIN:
            key.append((kind, a))  # 1 and True are equal, and not the same argument
        elif id(a) in parameters:
            key.append(id(a))
        else:
            return None
    return (*key, *kwargs)
