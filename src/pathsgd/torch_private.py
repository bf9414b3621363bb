"""The interfaces of torch that its documentation does not promise, and what needs them.

Each is used because nothing public does the same. `PRIVATE` names them all: a test looks through
the sources for others, and asks the torch at hand for each. Those that may be missing are reached
through the functions below, and callers know what to do without them.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

PRIVATE = {
    "torch._C.DisableTorchFunction": "recording fails: shapes of results are not known",
    "torch._C._are_functorch_transforms_active": "the fused RNN and loss fail",
    "torch._C._autograd._unsafe_set_version_counter": "restored tensors look changed",
    "torch._C._disabled_torch_function_impl": "recording fails: stand-ins would be intercepted",
    "torch._C._functorch": "gradients of the fused RNN and loss fail",
    "torch._C._get_function_stack_at": "the fused RNN fails",
    "torch._C._len_torch_dispatch_stack": "the fused RNN fails",
    "torch._C._len_torch_function_stack": "the fused RNN fails",
    "torch._VF": "recording packed sequences and the fused RNN fail",
    "torch._disable_dynamo": "import fails: torch.compiler.disable is slow to load",
    "torch._foreach_add_": "steps on other devices than the CPU fail",
    "torch._foreach_addcmul_": "steps on other devices than the CPU fail",
    "torch._foreach_copy_": "steps on other devices than the CPU fail",
    "torch._foreach_mul": "measurements on other devices than the CPU fail",
    "torch._foreach_mul_": "steps on other devices than the CPU fail",
    "torch._foreach_norm": "measurements on other devices fail, and those of partly frozen models",
    "torch.autograd.forward_ad._current_level": "the fused RNN fails",
    "torch.distributed.distributed_c10d._get_default_store": "give example_inputs=",
    "torch.nn.parallel.DistributedDataParallel._active_ddp_module": "give optimisers the wrapper",
    "torch.overrides._get_current_function_mode_stack": "import fails: who records would not show",
    "torch.segment_reduce": "sums before batch normalisation have no fixed order on a GPU",
    "torch.utils._device.DeviceContext": "import fails: torch.set_default_device is not seen",
    "torch.utils._pytree": "import fails: nested inputs are not taken apart",
    "torch.Tensor._make_wrapper_subclass": "recording fails: no tensors without data",
    "torch.Tensor._version": "measuring fails: what a forward pass has changed would not show",
}  # fmt: skip
"""By their names: what fails, or how it goes on."""


def default_store() -> Any:
    """The store that the processes of this run met in; None if it is not known."""
    get = getattr(dist.distributed_c10d, "_get_default_store", None)
    return None if get is None else get()


def active_ddp() -> Any:
    """The DistributedDataParallel whose forward is running; None if there is none, or unknown."""
    return getattr(DistributedDataParallel, "_active_ddp_module", None)


def set_version(tensor: Tensor, version: int) -> None:
    """Make a restored tensor look untouched; without the interface it looks changed."""
    set_counter = getattr(torch._C._autograd, "_unsafe_set_version_counter", None)
    if set_counter is None:
        return
    try:
        set_counter((tensor,), (version,))
    except TypeError:  # torch 2.6 takes one tensor, later ones several
        set_counter(tensor, version)


def segment_sums(values: Tensor, bounds: Tensor) -> Tensor:
    """The sums of values[bounds[i] : bounds[i + 1]], in the order of the values if torch can."""
    reduce = getattr(torch, "segment_reduce", None)
    if reduce is not None:
        # unsafe: the bounds are not checked, which would synchronise the device
        return reduce(values, "sum", offsets=bounds, unsafe=True, initial=0)  # type: ignore[no-any-return]
    numbers = torch.arange(len(bounds) - 1, device=bounds.device)
    lengths = bounds.diff()
    owners = numbers.repeat_interleave(lengths, output_size=len(values))
    return values.new_zeros(len(numbers)).index_add_(0, owners, values)


def is_capturing(device: torch.device) -> bool:
    """Whether what is launched now is captured in a graph instead of run."""
    if device.type == "cpu":
        return False
    asked = getattr(torch.get_device_module(device), "is_current_stream_capturing", None)
    return asked is not None and bool(asked())
