"""`RNN`, a drop-in for torch.nn.RNN; `fuse` and `unfuse` turn a model's RNNs into it and back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from pathsgd.nn import functional

Model = TypeVar("Model", bound=torch.nn.Module)


class RNN(torch.nn.RNN):
    """torch.nn.RNN with a faster forward and backward pass for `nonlinearity="relu"` on the CPU.

    Constructor, parameters, state_dict, outputs and errors are torch's own. float32 and float64 on
    the CPU are fused; `nonlinearity="tanh"`, other devices and types, autocast, torch.func
    transforms, export, scripting and active TorchFunctionModes go through torch.

    One thing is not torch's: inside the fused passes denormal numbers (below 1.2e-38 in float32,
    2.2e-308 in float64) count as zero, as they do everywhere after
    `torch.set_flush_denormal(True)`. They would cost a hundred cycles each, and vanishing states
    and gradients are full of them.

    Two habits are worth having. For a loss on the last step use `h_n`, which has a gradient path of
    its own: `output[-1]` is torch's indexing and builds a (T, B, H) gradient that is zero
    everywhere else. And do not change `output` in place: it is kept for the backward pass, which
    would raise.

    >>> rnn = RNN(2, 100, nonlinearity="relu")
    >>> output, h_n = rnn(torch.rand(50, 16, 2))
    >>> output.shape, h_n.shape
    (torch.Size([50, 16, 100]), torch.Size([1, 16, 100]))
    """

    def forward(self, input: Any, hx: Tensor | None = None) -> Any:
        fused: Any = None
        if self.mode == "RNN_RELU" and (hx is None or isinstance(hx, Tensor)):
            if isinstance(input, PackedSequence):
                fused = self._forward_packed(input, hx)
            elif isinstance(input, Tensor):
                fused = self._forward_padded(input, hx)
        return super().forward(input, hx) if fused is None else fused

    def _forward_padded(self, input: Tensor, hx: Tensor | None) -> tuple[Tensor, Tensor] | None:
        if input.dim() != 2:
            return self._run(input, None, hx, self.batch_first)
        if hx is not None and hx.dim() != 2:
            return None
        batched = self._run(
            input.unsqueeze(1), None, None if hx is None else hx.unsqueeze(1), False
        )
        return None if batched is None else (batched[0].squeeze(1), batched[1].squeeze(1))

    def _forward_packed(
        self, input: PackedSequence, hx: Tensor | None
    ) -> tuple[PackedSequence, Tensor] | None:
        if hx is not None:
            hx = self.permute_hidden(hx, input.sorted_indices)
        result = self._run(input.data, input.batch_sizes, hx, False)
        if result is None:
            return None
        packed = PackedSequence(
            result[0], input.batch_sizes, input.sorted_indices, input.unsorted_indices
        )
        return packed, self.permute_hidden(result[1], input.unsorted_indices)

    def _run(
        self, data: Tensor, batch_sizes: Tensor | None, hx: Tensor | None, batch_first: bool
    ) -> tuple[Tensor, Tensor] | None:
        """The fused result, or None.

        Then torch computes it, or says what is wrong with the input.
        """
        own = self._parameters  # far quicker than getattr, but a parametrised weight is elsewhere
        weights: list[Any] = [
            own[name] if name in own else getattr(self, name) for name in self._flat_weights_names
        ]
        shape = (self.bias, self.num_layers)
        if not functional.can_fuse(
            data, batch_sizes, hx, weights, *shape, self.bidirectional, batch_first
        ):
            return None
        dropout = self.dropout if self.training else 0.0
        return functional.run(
            data, batch_sizes, hx, weights, *shape, dropout, self.bidirectional, batch_first
        )

    def __prepare_scriptable__(self) -> torch.nn.RNN:
        """torch.jit.script compiles torch's own class, with the same parameters."""
        twin = torch.nn.RNN.__new__(torch.nn.RNN)
        twin.__dict__.update(self.__dict__)
        return twin


def fuse(model: Model) -> Model:
    """Turn every torch.nn.RNN with ReLU in `model`, itself included, into pathsgd.nn.RNN.

    Returns `model`.

    The modules stay the same objects, so parameters, optimisers, hooks, names and modes are
    untouched. Subclasses of torch.nn.RNN are left alone. Doing it twice changes nothing.
    """
    for module in _modules(model):
        if type(module) is torch.nn.RNN and module.nonlinearity == "relu":
            module.__class__ = RNN
    return model


def unfuse(model: Model) -> Model:
    """Turn every pathsgd.nn.RNN in `model` back into torch.nn.RNN; returns `model`."""
    for module in _modules(model):
        if type(module) is RNN:
            module.__class__ = torch.nn.RNN  # type: ignore[assignment]
    return model


def _modules(model: torch.nn.Module) -> Iterator[torch.nn.Module]:
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"expected a torch.nn.Module, got {type(model).__name__}")
    return model.modules()
