"""States that go from one call of a model to the next: truncated back-propagation through time."""

from __future__ import annotations

from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_unary


def carried(state: Tensor) -> Tensor:
    """The state itself; to a measurement of paths it is a start of nothing.

    state: what an earlier call of the model returned, and is given to it again.

    `torch.nn.RNN` says by itself which of its inputs is a state. In a loop of one's own it looks
    like any other input, whose entries nothing may rescale, and with it the units of the
    recurrence: say it there.

    >>> import torch
    >>> def forward(x, h, w_in, w_rec):
    ...     h = carried(h)
    ...     for x_t in x:
    ...         h = torch.relu(x_t @ w_in + h @ w_rec)
    ...     return h
    """
    if has_torch_function_unary(state):
        return handle_torch_function(carried, (state,), state)  # type: ignore[no-any-return]
    return state
