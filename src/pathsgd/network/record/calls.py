"""Calls of torch functions: one name per operation, uniform arguments, shapes of results."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import BuiltinFunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import resolve_name

from pathsgd.errors import UnsupportedOperation
from pathsgd.network.record.path_tensor import Lost, PathTensor
from pathsgd.network.rules import Kind, Refusal, Rule
from pathsgd.network.tape import Value, leaves, map_leaves

_PREFIXES = ("nn.functional.", "functional.", "Tensor.", "_C._nn.", "_VF.")
_RENAMED = {
    "torch.spmm": "mm",  # torch's name for mm
    "torch.Tensor.cpu": "to",
    "torch.Tensor.cuda": "to",
    # Two operations share a short name: one of each pair keeps a longer one.
    "torch.nn.functional.unfold": "functional.unfold",
    **{name: name for name in ("torch.batch_norm", "torch.embedding", "torch.embedding_bag")},
}
# Attributes and methods that need no values.
METADATA = frozenset(
    [
        "shape",
        "size",
        "dim",
        "ndim",
        "ndimension",
        "numel",
        "nelement",
        "stride",
        "storage_offset",
        "is_contiguous",
        "dtype",
        "device",
        "layout",
        "itemsize",
        "nbytes",
        "element_size",
        "is_floating_point",
        "is_complex",
        "is_signed",
        "is_conj",
        "is_neg",
        "is_inference",
        "is_nested",
        "is_sparse",
        "is_quantized",
        "is_cuda",
        "is_cpu",
        "is_mps",
        "is_meta",
        "is_xpu",
        "is_mkldnn",
        "get_device",
        "is_same_size",
        "is_pinned",
        "is_shared",
        "is_leaf",
        "requires_grad",
        "retains_grad",
        "grad",
        "grad_fn",
        "names",
        "output_nr",
        "_version",
        "_is_view",
        "_base",
        "_backward_hooks",
        "__hash__",
        "__repr__",
        "__str__",
        "__format__",
        "__len__",
        "result_type",
        "can_cast",
    ]
)
# New tensors with the shape and dtype of another: constants. `carried` is a state from a past call.
LIKE = frozenset(
    [
        "zeros_like",
        "ones_like",
        "empty_like",
        "full_like",
        "rand_like",
        "randn_like",
        "randint_like",
        "new_zeros",
        "new_ones",
        "new_empty",
        "new_full",
        "new_tensor",
        "carried",
    ]
)
# The same, with the shape or dtype of the second argument.
LIKE_SECOND = frozenset(["expand_as", "view_as", "reshape_as", "type_as", "to"])
# Tensors that are not initialised; the recorder makes them zeros.
UNINITIALISED = frozenset(["empty", "empty_like", "new_empty", "empty_strided"])
# Operations that draw random numbers.
RANDOM = frozenset(
    [
        "rand",
        "randn",
        "randint",
        "rand_like",
        "randn_like",
        "randint_like",
        "normal",
        "bernoulli",
        "poisson",
        "binomial",
        "uniform",
        "exponential",
        "log_normal",
        "cauchy",
        "geometric",
        "random",
        "multinomial",
        "randperm",
    ]
)
# Operations that hand a value to Python, where it may steer the forward pass.
LEAVING = frozenset(
    [
        "item",
        "tolist",
        "numpy",
        "__bool__",
        "__float__",
        "__int__",
        "__index__",
        "__array__",
        "__contains__",
        "is_nonzero",
        "equal",
        "allclose",
    ]
)
# Operations whose result has a shape that depends on values.
SHAPED_BY_VALUES = frozenset(
    [
        "nonzero",
        "argwhere",
        "unique",
        "unique_consecutive",
        "masked_select",
        "bincount",
        "repeat_interleave",
    ]
)
# Operators, as some versions of torch name them.
_OPERATORS = {
    **{f"__{kind}{name}__": name for name in ("add", "sub", "mul") for kind in ("", "i")},
    **{"__radd__": "add", "__rmul__": "mul", "__rsub__": "rsub", "__matmul__": "matmul"},
    **{"__truediv__": "div", "__itruediv__": "div", "__idiv__": "div"},
}
_IN_PLACE = frozenset(
    ["__iadd__", "__isub__", "__imul__", "__itruediv__", "__idiv__", "__setitem__"]
)
# The position of the flag `inplace`; the other operations that have one are the identity on paths.
_IN_PLACE_FLAG = {"relu": 1, "leaky_relu": 2}
# numpy's names for torch's arguments, which torch accepts.
_NUMPY_NAMES = {"axis": "dim", "keepdims": "keepdim"}
# Arguments that rules take by position.
_POSITIONAL = (("input", "tensors", "condition"), ("other", "mat2", "vec"))


# ---- names and arguments -------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def canonical_name(function: Callable[..., Any]) -> str:
    """`torch.Tensor.relu_`, `torch.relu` and `torch.nn.functional.relu` are all `relu`."""
    if function is torch.autograd.grad:  # torch calls it "grad", as the attribute of a tensor
        return "autograd.grad"
    name = _quick_name(function) or resolve_name(function)
    return _canonical(name or getattr(function, "__name__", repr(function)))


def _canonical(name: str) -> str:
    if name in _RENAMED:
        return _RENAMED[name]
    if name.startswith("torch."):
        name = name.removeprefix("torch.")
        prefix = next((p for p in _PREFIXES if name.startswith(p)), "")
        name = name.removeprefix(prefix)
    name = name if name.endswith("__") else name.removesuffix("_")
    return _OPERATORS.get(name, name)


def _quick_name(function: Callable[..., Any]) -> str | None:
    """What `resolve_name` returns for the usual functions, without its table of all of torch."""
    name = getattr(function, "__name__", "")
    # Functions with several names, among which torch chooses.
    is_private = name.startswith("_") and not name.startswith("__")
    if is_private or name.endswith(("smm", "spmm", "saddmm")):
        return None
    if name == "__get__":  # of an attribute
        attribute = getattr(function, "__self__", None)
        of = getattr(attribute, "__name__", "")
        is_known = of and getattr(Tensor, of, None) is attribute
        return f"torch.Tensor.{of}.__get__" if is_known else None
    owner = getattr(function, "__objclass__", None)
    is_method = isinstance(owner, type) and issubclass(Tensor, owner)
    if is_method and getattr(Tensor, name, None) is function:
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
    """The arguments as rules take them, whichever of torch's spellings was used."""
    kwargs = {_NUMPY_NAMES.get(k, k): v for k, v in kwargs.items() if k not in ("inplace", "out")}
    for place, names in enumerate(_POSITIONAL):
        for name in names:
            if name in kwargs and len(args) == place:
                args = (*args, kwargs.pop(name))
    return args, kwargs


# ---- a call against its rule ---------------------------------------------------------------------


class NoRule(Exception):
    """No rule covers this operation, or not as it is called."""

    def __init__(self, operation: str, advice: str) -> None:
        super().__init__(operation)
        self.operation, self.advice = operation, advice


@dataclass(frozen=True)
class Checked:
    """A call that its rule covers.

    kind: of its results. results: the shape and dtype of each, or the result itself where it
        carries
    no paths. single: whether there is one. pack: the tuple type that torch returns several in.
    """

    name: str
    rule: Rule
    kind: Kind
    results: list[tuple[torch.Size, torch.dtype] | Tensor]
    single: bool
    pack: Callable[[Any], Any]

    def outputs(self) -> tuple[Value | None, ...]:
        """New values for the results of such a call."""
        return tuple(
            [None if isinstance(r, Tensor) else Value(self.kind, *r) for r in self.results]
        )


_PLAIN = frozenset({int, float, bool, str, type(None), torch.dtype})


def key_of(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], parameters: Mapping[int, str]
) -> Any:
    """Calls with equal keys are checked once: the turns of a loop repeat the same calls.

    A check depends on the kinds, shapes and dtypes of the operands, on which parameters are among
    them, and on plain arguments. None for calls with constant tensors or nested arguments.
    """
    key: list[Any] = [func, len(args)]
    for a in (*args, *kwargs.values()) if kwargs else args:
        kind = type(a)
        if kind is PathTensor:
            value = a.value
            if type(value) is not Value:  # lost
                return None
            # A product may take an operand with known values as a constant.
            key.append((value.kind, value.shape, value.dtype, a.known is None))
        elif kind in _PLAIN:
            key.append((kind, a))  # 1 and True are equal, and not the same argument
        elif id(a) in parameters:
            key.append(id(a))
        else:
            return None
    return (*key, *kwargs)


@lru_cache(maxsize=4096)
def check_call(rule: Rule, count: int, names: tuple[str, ...]) -> None:
    """Refuse a call that the rule's `squared` could not take, while the call can be named."""
    try:
        inspect.signature(rule.squared).bind(None, *[None] * count, **dict.fromkeys(names))
    except TypeError as error:
        raise Refusal(
            f"its rule does not cover this form of call ({error}); "
            "pass the usual arguments by position"
        ) from None


def results_of(
    func: Any, rule: Rule, args: Any, kwargs: Any
) -> tuple[list[Tensor], bool, Callable[[Any], Any]]:
    """The results as tensors without data, whether there is one, and the tuple type of several."""

    def empty(a: Any) -> Any:
        if isinstance(a, Value) or not isinstance(a, Tensor):
            return _without_data(a)
        return a.to("meta") if a.is_floating_point() else a.cpu()  # integers may decide the shape

    with torch._C.DisableTorchFunction():
        result = rule.shape(func, *map_leaves(empty, (args, kwargs)))
    if isinstance(result, Tensor):
        return [result], True, tuple
    is_named = type(result).__module__ == "torch.return_types"
    return list(result), False, type(result) if is_named else tuple


def _without_data(a: Any) -> Any:
    if not isinstance(a, Value | Tensor):
        return a
    return torch.empty(a.shape, dtype=a.dtype, device="meta")


def lost_results(
    refusal: UnsupportedOperation, func: Any, name: str, args: Any, kwargs: dict[str, Any]
) -> Any:
    """The results of an operation without a rule; raises where Python would read their values."""
    if name in LEAVING or name == "__setitem__":
        raise refusal
    operands = (a for a in leaves((args, kwargs)) if isinstance(a, PathTensor | nn.Parameter))
    device = next(operands).device

    def lost(r: Any) -> Any:
        if not isinstance(r, Tensor):
            return r
        return PathTensor(Lost(Kind.ACTIVATION, r.shape, r.dtype, refusal), device)

    if name == "autograd.grad":
        inputs = kwargs.get("inputs", args[1] if len(args) > 1 else ())
        return tuple(map(lost, [inputs] if isinstance(inputs, Tensor) else inputs))
    try:
        with torch._C.DisableTorchFunction():
            result = func(*map_leaves(_without_data, args), **map_leaves(_without_data, kwargs))
    except Exception:  # the user needs the refusal, not torch's complaint about missing data
        raise refusal from None
    if changes_its_operand(func, name, args, kwargs) and isinstance(args[0], PathTensor):
        args[0].value = lost(args[0]).value
        return args[0]
    return map_results(lost, result)


def map_results(function: Callable[[Any], Any], result: Any) -> Any:
    """function of every tensor that an operation returned; torch.max returns a tuple with names."""
    if isinstance(result, tuple) and type(result) is not tuple:
        return type(result)(map(function, result))
    return map_leaves(function, result)
