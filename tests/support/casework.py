"""What a case is: a tiny model, example inputs, and independent oracles for its path quantities."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from oracle import Layout, Network
from support.models import Between, Weights

ones = partial(torch.ones, dtype=torch.float64)


@dataclass(frozen=True)
class Case:
    model: Callable[[], nn.Module]
    inputs: tuple[Sequence[int] | Tensor, ...]
    """Shapes of floating-point inputs, or tensors; one example."""
    batch: int | tuple[int, ...] | None = 0
    """The dimension of the examples, for each input; None: the model takes no batch."""
    twin: Callable[[], nn.Module] | None = None
    twin_inputs: tuple[Any, ...] | None = None
    reference: Callable[[], tuple[Network, Layout]] | None = None
    fewer_nodes: bool = field(default=False)
    """The library finds fewer free nodes than the reference: it keeps all uses of a weight between
    the same two nodes, and all positions of a channel in a pool together."""

    def build(self, name: str) -> nn.Module:
        """The model in float64 with weights from a seed of its own, in inference mode."""
        torch.manual_seed(zlib.crc32(name.encode()))
        model = self.model().double()
        for module in model.modules():
            if (
                isinstance(module, nn.modules.batchnorm._BatchNorm)
                and module.running_mean is not None
            ):
                module.running_mean.normal_()
                module.running_var.uniform_(0.5, 2.0)
        return model.eval()

    def examples(self, rows: int = 3) -> tuple[Tensor, ...]:
        """Example inputs with this many rows."""
        dims = self.batch if isinstance(self.batch, tuple) else (self.batch,) * len(self.inputs)
        found = [
            x if isinstance(x, Tensor) else torch.rand(*x, dtype=torch.float64) for x in self.inputs
        ]
        return tuple(x if d is None else x.repeat_interleave(rows, d) for x, d in zip(found, dims))

    def oracle(self, model: nn.Module) -> Callable[[dict[str, Tensor]], Tensor]:
        """g(q): the twin's plain forward pass on ones, outputs summed."""
        twin = model if self.twin is None else self.twin().double().eval()
        twin.load_state_dict(model.state_dict())
        inputs = self.twin_inputs or tuple(
            x if isinstance(x, Tensor) else torch.ones(*x, dtype=torch.float64) for x in self.inputs
        )
        return lambda q: _first(torch.func.functional_call(twin, q, inputs)).sum()


def _first(result: Any) -> Tensor:
    return (
        result
        if isinstance(result, Tensor)
        else _first(next(iter(result.values() if isinstance(result, dict) else result)))
    )


def squared_map(operation: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """The squared network of an operation without parameters: its squared matrix and offset.

    Column i is the response to a single active unit; a path through unit i passes a max-pool the
    same way.
    """

    def apply(h: Tensor) -> Tensor:
        shape = h.shape[1:]
        count = math.prod(shape)
        offset = operation(torch.zeros(1, *shape, dtype=h.dtype))
        matrix = operation(torch.eye(count, dtype=h.dtype).reshape(count, *shape)) - offset
        mapped = h.reshape(-1, count) @ matrix.reshape(count, -1) ** 2 + offset.reshape(1, -1) ** 2
        return mapped.reshape(-1, *offset.shape[1:])

    return apply


def between(operation: Callable[[Tensor], Tensor], *shape: int, **options: Any) -> Case:
    shape = shape or (4,)
    twin = partial(Between, squared_map(operation), shape)
    return Case(partial(Between, operation, shape), ((1, 2),), twin=twin, **options)


def weights(
    forward: Callable[..., Any], *inputs: Sequence[int], batch: Any = 0, **shapes: Sequence[int]
) -> Case:
    return Case(partial(Weights, forward, **shapes), inputs, batch=batch)
