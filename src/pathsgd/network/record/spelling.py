"""How torch's functions are called: one name for the many spellings of an operation, one order for its arguments."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from types import BuiltinFunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import resolve_name

_PREFIXES = (
    "torch.nn.functional.",
    "torch.functional.",
    "torch.Tensor.",
    "torch._C._nn.",
    "torch._VF.",
    "torch.",
)
_RENAMED = {
    "torch.spmm": "mm",  # what torch says of mm
    "torch.Tensor.cpu": "to",
    "torch.Tensor.cuda": "to",
    # Two operations with one short name: one of them keeps a longer name.
    "torch.nn.functional.unfold": "functional.unfold",
    **{name: name for name in ("torch.batch_norm", "torch.embedding", "torch.embedding_bag")},
}
# Questions about a tensor that need no value.
METADATA = frozenset([
    "shape", "size", "dim", "ndim", "ndimension", "numel", "nelement", "stride", "storage_offset", "is_contiguous",
    "dtype", "device", "layout", "itemsize", "nbytes", "element_size", "is_floating_point", "is_complex", "is_signed",
    "is_conj", "is_neg", "is_inference", "is_nested", "is_sparse", "is_quantized", "is_cuda", "is_cpu", "is_mps",
    "is_meta", "is_xpu", "is_mkldnn", "get_device", "is_same_size", "is_pinned", "is_shared", "is_leaf",
    "requires_grad", "retains_grad", "grad", "grad_fn", "names", "output_nr", "_version", "_is_view", "_base",
    "_backward_hooks", "__hash__", "__repr__", "__str__", "__format__", "__len__", "result_type", "can_cast",
])  # fmt: skip
# New tensors after the fashion of another, of which only shape and dtype matter: constants. A carried state is nothing.
LIKE = frozenset([
    "zeros_like", "ones_like", "empty_like", "full_like", "rand_like", "randn_like", "randint_like", "new_zeros",
    "new_ones", "new_empty", "new_full", "new_tensor", "carried",
])  # fmt: skip
# The same, after the fashion of their second argument.
LIKE_SECOND = frozenset({"expand_as", "view_as", "reshape_as", "type_as", "to"})
# What these hold before they are written to has no meaning, so let it be zeros.
UNINITIALISED = frozenset({"empty", "empty_like", "new_empty", "empty_strided"})
# Operators, as some versions of torch name them.
_OPERATORS = {
    **{f"__{kind}{name}__": name for name in ("add", "sub", "mul") for kind in ("", "i")},
    **{"__radd__": "add", "__rmul__": "mul", "__rsub__": "rsub", "__matmul__": "matmul"},
    **{"__truediv__": "div", "__itruediv__": "div", "__idiv__": "div"},
}
_IN_PLACE = frozenset(
    {"__iadd__", "__isub__", "__imul__", "__itruediv__", "__idiv__", "__setitem__"}
)
_IN_PLACE_FLAG = {"relu": 1, "leaky_relu": 2}
"""Where the flag stands among the positional arguments; other operations with one are the identity on paths."""
# numpy's names for torch's arguments, which torch accepts.
_NUMPY_NAMES = {"axis": "dim", "keepdims": "keepdim"}
# Arguments that rules take by position, whatever the user does.
_POSITIONAL = (("input", "tensors", "condition"), ("other", "mat2", "vec"))


@lru_cache(maxsize=4096)
def canonical_name(function: Callable[..., Any]) -> str:
    """`torch.Tensor.relu_`, `torch.relu` and `torch.nn.functional.relu` are all `relu`."""
    if function is torch.autograd.grad:  # torch calls it "grad", as the attribute of a tensor
        return "autograd.grad"
    name = (
        _quick_name(function)
        or resolve_name(function)
        or getattr(function, "__name__", repr(function))
    )
    return _canonical(name)


def _canonical(name: str) -> str:
    if name in _RENAMED:
        return _RENAMED[name]
    prefix = next((p for p in _PREFIXES if name.startswith(p)), "")
    name = name.removeprefix(prefix)
    name = name if name.endswith("__") else name.removesuffix("_")
    return _OPERATORS.get(name, name)


def _quick_name(function: Callable[..., Any]) -> str | None:
    """What `torch.overrides.resolve_name` says of the usual functions; it lists all of torch first, once a process."""
    name = getattr(function, "__name__", "")
    # Several names of one function: torch's choice among them.
    if name.endswith(("smm", "spmm", "saddmm")) or (
        name.startswith("_") and not name.startswith("__")
    ):
        return None
    if name == "__get__":  # of an attribute
        attribute = getattr(function, "__self__", None)
        of = getattr(attribute, "__name__", "")
        return (
            f"torch.Tensor.{of}.__get__" if of and getattr(Tensor, of, None) is attribute else None
        )
    owner = getattr(function, "__objclass__", None)
    if (
        isinstance(owner, type)
        and issubclass(Tensor, owner)
        and getattr(Tensor, name, None) is function
    ):
        return f"torch.Tensor.{name}"
    if getattr(F, name, None) is function:
        return f"torch.nn.functional.{name}"
    is_builtin = isinstance(function, BuiltinFunctionType)
    return f"torch.{name}" if is_builtin and getattr(torch, name, None) is function else None


def changes_its_operand(
    function: Callable[..., Any], name: str, args: Any, kwargs: dict[str, Any]
) -> bool:
    """Whether the call writes into its first operand: an in-place spelling, or inplace=True."""
    raw = getattr(function, "__name__", "")
    if raw in _IN_PLACE or (raw.endswith("_") and not raw.endswith("__")):
        return name not in ("requires_grad", "detach")
    if name in _IN_PLACE_FLAG:
        at = _IN_PLACE_FLAG[name]
        return kwargs.get("inplace") is True or (len(args) > at and args[at] is True)
    return False


def uniform_arguments(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments as rules take them, whichever of torch's spellings the user chose."""
    kwargs = {_NUMPY_NAMES.get(k, k): v for k, v in kwargs.items() if k not in ("inplace", "out")}
    for place, names in enumerate(_POSITIONAL):
        for name in names:
            if name in kwargs and len(args) == place:
                args = (*args, kwargs.pop(name))
    return args, kwargs
