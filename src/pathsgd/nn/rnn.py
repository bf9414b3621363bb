"""`RNN`, a drop-in for torch.nn.RNN, and `fuse` / `unfuse`, which turn a model's RNNs into it and back."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from pathsgd.nn import functional

Model = TypeVar("Model", bound=torch.nn.Module)


class RNN(torch.nn.RNN):
    """torch.nn.RNN with a faster forward and backward pass for `nonlinearity="relu"` on the CPU.

    Constructor, parameters, state_dict, outputs and errors are torch's own. float32 and float64 on the CPU are fused;
    `nonlinearity="tanh"`, other devices and types, autocast, torch.func transforms, export, scripting and active
    TorchFunctionModes go through torch.

    Two habits are worth having. For a loss on the last step use `h_n`, which has a gradient path of its own:
    `output[-1]` is torch's indexing and builds a (T, B, H) gradient that is zero everywhere else. And do not change
    `output` in place: it is kept for the backward pass, which would raise.

    >>> rnn = RNN(2, 100, nonlinearity="relu")
    >>> output, h_n = rnn(torch.rand(50, 16, 2))
    >>> output.shape, h_n.shape
    (torch.Size([50, 16, 100]), torch.Size([1, 16, 100]))
    """

    def forward(self, input: Any, hx: Tensor | None = None) -> Any:
        weights = self._weights()
        if isinstance(input, PackedSequence):
            if self._fits(input.data, hx, weights, 2, int(input.batch_sizes[0])):
                return self._forward_packed(input, hx, weights)
        elif isinstance(input, Tensor) and input.dim() in (2, 3):
            unbatched = input.dim() == 2
            batch = 1 if unbatched else input.shape[0 if self.batch_first else 1]
            if self._fits(input, hx, weights, input.dim(), None if unbatched else batch):
                return self._forward_padded(input, hx, weights)
        return super().forward(input, hx)

    def _weights(self) -> list[Any]:
        names = self._flat_weights_names
        own = self._parameters  # far quicker than getattr, but a parametrised weight is elsewhere
        return [own[name] if name in own else getattr(self, name) for name in names]

    def _fits(self, data: Tensor, hx: Tensor | None, weights: list[Any], dims: int, batch: int | None) -> bool:
        """Whether the input can be fused; if not, torch computes it or says what is wrong with it."""
        if self.mode != "RNN_RELU" or not functional.can_fuse((data, hx, *weights)):
            return False
        states = self.num_layers * (2 if self.bidirectional else 1)
        expected = (states, self.hidden_size) if batch is None else (states, batch, self.hidden_size)
        return (
            data.dim() == dims
            and data.shape[-1] == self.input_size
            and data.numel() > 0
            and (hx is None or hx.shape == expected)
        )

    def _forward_padded(self, input: Tensor, hx: Tensor | None, weights: list[Tensor]) -> tuple[Tensor, Tensor]:
        if input.dim() == 3:
            return self._run(input, None, hx, weights, self.batch_first)
        output, h_n = self._run(input.unsqueeze(1), None, None if hx is None else hx.unsqueeze(1), weights, False)
        return output.squeeze(1), h_n.squeeze(1)

    def _forward_packed(
        self, input: PackedSequence, hx: Tensor | None, weights: list[Tensor]
    ) -> tuple[PackedSequence, Tensor]:
        if hx is not None:
            hx = self.permute_hidden(hx, input.sorted_indices)
        output, h_n = self._run(input.data, input.batch_sizes, hx, weights, False)
        packed = PackedSequence(output, input.batch_sizes, input.sorted_indices, input.unsorted_indices)
        return packed, self.permute_hidden(h_n, input.unsorted_indices)

    def _run(
        self, data: Tensor, batch_sizes: Tensor | None, hx: Tensor | None, weights: list[Tensor], batch_first: bool
    ) -> tuple[Tensor, Tensor]:
        dropout = self.dropout if self.training else 0.0
        return functional.run(
            data, batch_sizes, hx, weights, self.bias, self.num_layers, dropout, self.bidirectional, batch_first
        )

    def __prepare_scriptable__(self) -> torch.nn.RNN:
        """torch.jit.script compiles torch's own class, with the same parameters."""
        twin = torch.nn.RNN.__new__(torch.nn.RNN)
        twin.__dict__.update(self.__dict__)
        return twin


def fuse(model: Model) -> Model:
    """Turn every torch.nn.RNN with ReLU in `model` (the model itself included) into pathsgd.nn.RNN; returns `model`.

    The modules stay the same objects, so parameters, optimisers, hooks, names and modes are untouched. Subclasses of
    torch.nn.RNN are left alone. Doing it twice changes nothing.
    """
    for module in model.modules():
        if type(module) is torch.nn.RNN and module.nonlinearity == "relu":
            module.__class__ = RNN
    return model


def unfuse(model: Model) -> Model:
    """Turn every pathsgd.nn.RNN in `model` back into torch.nn.RNN; returns `model`."""
    for module in model.modules():
        if type(module) is RNN:
            module.__class__ = torch.nn.RNN  # type: ignore[assignment]
    return model
