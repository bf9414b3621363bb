"""The user's own forward pass, written down as a list of steps through which paths flow.

A `TorchFunctionMode` watches the model run on tensors that have a shape and no data. Each operation that meets a
parameter or a tensor that carries paths becomes one `Step` with its rule; an operation without a rule raises. Any
eager code works, hand-written loops included, and parameter identity tells sharing from equality. The model is not
copied, traced or changed, and what is written down does not depend on the values of the weights, so one recording
serves every later evaluation at the same shapes.

The batch. gamma^2 belongs to the network, not to a batch of examples. The batch dimension is the first one along
which the model treats slices separately: resized, it leaves the steps as they are and the output grows in proportion.
The recording is made with one example.
"""

from __future__ import annotations

import itertools
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils._pytree import tree_leaves, tree_map

from pathsgd.errors import UnsupportedOperation
from pathsgd.rules import REFUSED, RULES, Kind, Refusal, Rule


@dataclass(eq=False)
class Value:
    """One tensor of the recorded pass: what it is and its shape, no data."""

    kind: Kind
    shape: torch.Size
    dtype: torch.dtype
    carries_paths: bool = True


@dataclass(frozen=True)
class Step:
    """One recorded operation; `args` hold `Value`s where tensors carry paths and the user's own objects elsewhere."""

    operation: str
    rule: Rule
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: tuple[Value | None, ...]
    single: bool
    where: str

    def operands(self) -> list[Value]:
        return [a for a in tree_leaves((self.args, self.kwargs)) if isinstance(a, Value)]


@dataclass
class Recording:
    """All steps from the inputs to one output, and the parameters they use."""

    inputs: list[Value] = field(default_factory=list)
    parameters: dict[str, Value] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    output: Value | None = None
    examples: int = 1
    """How many examples the output sums over: 1, or the rows of a packed batch."""


class PathTensor(Tensor):
    """A tensor without data that stands for one `Value` while the user's forward runs."""

    value: Value
    group: weakref.WeakSet[PathTensor]

    @staticmethod
    def __new__(cls, value: Value, device: torch.device) -> PathTensor:
        tensor = Tensor._make_wrapper_subclass(cls, value.shape, dtype=value.dtype, device=device)  # type: ignore[attr-defined]
        tensor.value = value
        tensor.group = weakref.WeakSet([tensor])  # all tensors that would share this one's memory
        return tensor

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # Compiled or scripted code reaches this place without passing the mode.
        raise UnsupportedOperation(str(func), "compiled or scripted code", "measure the plain eager module instead")

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"PathTensor({self.value.kind.value}, shape={tuple(self.value.shape)})"

    def __hash__(self) -> int:
        return id(self)


def canonical_name(operation: Callable[..., Any]) -> str:
    """`torch.Tensor.relu_`, `torch.relu` and `torch.nn.functional.relu` are all `relu`."""
    full = resolve_name(operation) or getattr(operation, "__qualname__", repr(operation))
    name = full
    for prefix in ("torch.nn.functional.", "torch.Tensor.", "torch._C._nn.", "torch._VF.", "torch.nn.init.", "torch."):
        if full.startswith(prefix):
            name = full.removeprefix(prefix)
            break
    if name.endswith("_") and not name.endswith("__"):
        name = name.rstrip("_")
    return name


# Questions about a tensor that its shape answers, and flags that concern no value.
_METADATA = frozenset(
    "shape size dim ndim numel nelement stride is_floating_point is_complex is_contiguous dtype device layout requires_grad "
    "is_nested is_sparse is_quantized is_leaf grad_fn grad _version names is_cuda is_mps is_meta is_mkldnn is_cpu is_xpu ndimension "
    "element_size is_signed is_conj is_neg is_inference __hash__ __repr__ data_ptr storage_offset output_nr retains_grad "
    "_backward_hooks is_same_size is_pinned get_device __len__ itemsize nbytes is_view _is_view _base is_shared is_ipu is_vulkan is_maia"
    .split()
)  # fmt: skip
_IN_PLACE_DUNDERS = frozenset({"__iadd__", "__isub__", "__imul__", "__itruediv__"})
_NEW = frozenset({"zeros_like", "ones_like", "empty_like", "full_like", "rand_like", "randn_like", "new_zeros", "new_ones", "new_empty", "new_full", "new_tensor"})


class Recorder(TorchFunctionMode):
    """Writes down what happens to parameters and path-carrying tensors."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.recording = Recording()
        self._parameters = {id(p): name for name, p in model.named_parameters()}
        self._modules = {id(m): name for name, m in model.named_modules()}
        self._written: dict[int, tuple[Tensor, Value]] = {}  # plain tensors that values were written into

    def input(self, tensor: Tensor) -> PathTensor:
        value = Value(Kind.INPUT, tensor.shape, tensor.dtype)
        self.recording.inputs.append(value)
        return PathTensor(value, tensor.device)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not any(self._is_ours(a) for a in tree_leaves((args, kwargs))):
            return func(*args, **kwargs)
        name = canonical_name(func)
        if name.removesuffix(".__get__") in _METADATA:
            return func(*args, **kwargs)
        if name in _NEW:
            return func(*tree_map(self._as_meta_like, args), **kwargs)
        if name == "__iter__":
            return iter(self.__torch_function__(Tensor.unbind, types, args))
        if name == "data.__set__" or name.endswith(".__set__") or name == "__delattr__":
            raise UnsupportedOperation(name, self._where(), "parameters must not be changed in the forward pass")
        return self._record(func, name, args, kwargs)

    def _is_ours(self, a: Any) -> bool:
        if not isinstance(a, Tensor):
            return False
        return isinstance(a, (PathTensor, nn.Parameter)) or id(a) in self._parameters or id(a) in self._written

    def _as_meta_like(self, a: Any) -> Any:
        return torch.empty(a.shape, dtype=a.dtype, device=a.device) if isinstance(a, PathTensor) else a

    def _value(self, a: Any) -> Any:
        """The recorded value behind a tensor, or the object itself when it carries no paths."""
        if isinstance(a, PathTensor):
            return a.value
        if isinstance(a, Tensor):
            if id(a) in self._written:
                return self._written[id(a)][1]
            name = self._parameters.get(id(a))
            if name is not None:
                return self.recording.parameters.setdefault(name, Value(Kind.WEIGHT, a.shape, a.dtype))
            if isinstance(a, nn.Parameter):
                raise ValueError(
                    f"a Parameter of shape {tuple(a.shape)} is used in {self._where()} but not registered in the model; "
                    "assign it to a module attribute or use torch.nn.ParameterList"
                )
        return a

    def _record(self, func: Any, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
        rule = RULES.get(name)
        if rule is None:
            full = resolve_name(func) or repr(func)
            raise UnsupportedOperation(full, self._where(), REFUSED.get(name, "rewrite it with supported operations (see pathsgd.explain), or add a rule"))
        values, named = tree_map(self._value, (tuple(args), kwargs))
        in_place = self._writes_to(func, name, args, kwargs)
        named = {k: v for k, v in named.items() if k not in ("inplace", "out")}
        operands = [a for a in tree_leaves((values, named)) if isinstance(a, Value)]
        try:
            values = rule.rewrite(*values)
            rule.check(*values, **named)
        except Refusal as refusal:
            raise UnsupportedOperation(name, self._where(), str(refusal)) from None
        if rule.multiplies and sum(o.kind is not Kind.WEIGHT for o in operands) > self._factors(rule, operands):
            raise UnsupportedOperation(name, self._where(), "it multiplies two activations, which is not a path; one side must be parameters or constants")
        results, single = self._run(func, rule, values, named)
        device = next(a.device for a in tree_leaves((args, kwargs)) if self._is_ours(a))
        kind = rule.result_kind(o.kind for o in operands)
        outputs = tuple(Value(kind, r.shape, r.dtype) if isinstance(r, Tensor) and r.is_floating_point() else None for r in results)
        self.recording.steps.append(Step(name, rule, values, named, outputs, single, self._where()))
        if in_place is not None:
            assert outputs[0] is not None
            return self._overwrite(in_place, outputs[0], name)
        tensors = tuple(r if v is None else PathTensor(v, device) for v, r in zip(outputs, results))
        if rule.aliases:
            self._share_memory(args, tensors)
        return tensors[0] if single else tensors

    @staticmethod
    def _factors(rule: Rule, operands: Sequence[Value]) -> int:
        """How many non-weights an operation takes without multiplying them: x alone, or x beside a state or a term."""
        return 2 if rule.name in ("rnn_relu", "rnn_relu_cell", "addmm", "addmv", "baddbmm") else 1

    def _run(self, func: Any, rule: Rule, args: Any, kwargs: Any) -> tuple[list[Any], bool]:
        """Shapes and dtypes of the results, from running the operation on tensors without data."""

        def without_data(a: Any) -> Any:
            return torch.empty(a.shape, dtype=a.dtype, device="meta") if isinstance(a, Value) else a

        def on_meta(a: Any) -> Any:
            return a.to("meta") if isinstance(a, Tensor) and a.is_floating_point() else a

        with torch._C.DisableTorchFunction():
            plain_args, plain_kwargs = tree_map(without_data, (args, kwargs))
            plain_args, plain_kwargs = tree_map(on_meta, (plain_args, plain_kwargs))
            if rule.name == "__setitem__":
                result = plain_args[0]
            else:
                result = rule.shape(func, plain_args, plain_kwargs)
        return ([result], True) if isinstance(result, Tensor) else (list(result), False)

    def _writes_to(self, func: Any, name: str, args: Any, kwargs: dict[str, Any]) -> Tensor | None:
        """The tensor an in-place operation changes, refused where the change would reach other tensors unseen."""
        raw = getattr(func, "__name__", "")
        if kwargs.get("out") is not None:
            raise UnsupportedOperation(name, self._where(), "out= writes where paths cannot follow; use the returned tensor")
        in_place = raw.endswith("_") and not raw.endswith("__") or name in _IN_PLACE_DUNDERS or name == "__setitem__" or kwargs.get("inplace") is True
        if name == "relu" and len(args) > 1 and args[1] is True:
            in_place = True
        if not in_place or name in ("requires_grad", "detach"):
            return None
        target = args[0]
        if isinstance(target, PathTensor):
            if len(target.group) > 1:
                raise UnsupportedOperation(raw, self._where(), "it changes a tensor in place while a view of it is in use; use the out-of-place form")
            if target.value.kind is Kind.INPUT and name != "__setitem__" and target.value in self.recording.inputs:
                raise UnsupportedOperation(raw, self._where(), "it changes the model's input in place; use the out-of-place form")
        elif id(target) in self._parameters:
            raise UnsupportedOperation(raw, self._where(), "parameters must not be changed in the forward pass")
        elif target._is_view() or name != "__setitem__":
            raise UnsupportedOperation(raw, self._where(), "it writes paths into a tensor in place; collect results with torch.stack or x[i] = y")
        return target

    def _overwrite(self, target: Tensor, value: Value, name: str) -> Tensor | None:
        if isinstance(target, PathTensor):
            target.value = value
        else:
            self._written[id(target)] = (target, value)  # the tensor is kept alive, so its id stays its own
        return None if name == "__setitem__" else target

    @staticmethod
    def _share_memory(args: Any, tensors: tuple[Any, ...]) -> None:
        for source in (a for a in tree_leaves(args) if isinstance(a, PathTensor)):
            for tensor in tensors:
                if isinstance(tensor, PathTensor):
                    source.group.add(tensor)
                    tensor.group = source.group

    def _where(self) -> str:
        """The innermost module whose forward is running, found on the call stack: no hooks, nothing to undo."""
        frame = sys._getframe(1)
        while frame is not None:
            name = self._modules.get(id(frame.f_locals.get("self")))
            if name is not None:
                return f"module '{name}'" if name else "the model itself"
            frame = frame.f_back  # type: ignore[assignment]
        return "the model itself"


@contextmanager
def left_as_found(model: nn.Module) -> Iterator[None]:
    """Whatever the forward pass does to modules, buffers or the random state is undone, also when it raises."""
    modules = [(m, {k: dict(v) if isinstance(v, dict) else v for k, v in vars(m).items()}) for m in model.modules()]
    buffers = [(b, b._version, b.detach().clone()) for b in model.buffers()]
    devices = sorted({p.device for p in model.parameters() if p.device.type == "cuda"}, key=str)
    with torch.random.fork_rng(devices=devices), torch.no_grad():
        try:
            yield
        finally:
            for buffer, version, before in buffers:
                if buffer._version != version:
                    with torch.autograd._unsafe_preserve_version_counter(buffer):
                        buffer.copy_(before)
            for module, attributes in modules:
                _restore(module, attributes)


def _restore(module: nn.Module, attributes: dict[str, Any]) -> None:
    now = vars(module)
    for name in [n for n in now if n not in attributes]:
        del now[name]
    for name, value in attributes.items():
        if isinstance(value, dict) and isinstance(now.get(name), dict):
            if now[name] != value if name not in ("_parameters", "_buffers") else any(now[name].get(k) is not v for k, v in value.items()) or len(now[name]) != len(value):
                now[name].clear()
                now[name].update(value)
        elif now.get(name) is not value:
            now[name] = value


def choose_output(result: Any, output: int | str | Callable[[Any], Any] | None) -> Any:
    """The tensor to measure: the first one of a tuple or dict unless `output` chooses another."""
    if callable(output):
        return output(result)
    if output is not None:
        try:
            return result[output]
        except (KeyError, IndexError, TypeError) as error:
            raise ValueError(f"output={output!r} does not fit what the model returned ({_describe(result)})") from error
    for leaf in tree_leaves(result) if not isinstance(result, Mapping) else tree_leaves(list(result.values())):
        if isinstance(leaf, Tensor):
            return leaf
    raise ValueError(f"the model returned no tensor ({_describe(result)}); choose one with output=")


def _describe(result: Any) -> str:
    if isinstance(result, Mapping):
        return f"a dict with keys {sorted(map(str, result))}"
    return f"{type(result).__name__} of length {len(result)}" if isinstance(result, (tuple, list)) else type(result).__name__


def _record_once(model: nn.Module, inputs: Sequence[Any], output: Any) -> Recording:
    recorder = Recorder(model)
    carried = tree_map(lambda a: recorder.input(a) if isinstance(a, Tensor) and a.is_floating_point() else a, list(inputs))
    with left_as_found(model), recorder:
        result = choose_output(model(*carried), output)
    value = recorder._value(result)
    if not isinstance(value, Value):
        raise ValueError("the model's output depends on neither its inputs nor its parameters: there is no path to measure")
    recording = recorder.recording
    recording.output = value
    packed = [s.args[1] for s in recording.steps if s.operation == "rnn_relu" and not isinstance(s.args[2], (list, tuple)) and isinstance(s.args[1], Tensor)]
    recording.examples = int(packed[0][0]) if packed else 1
    return recording


def record(model: nn.Module, inputs: Sequence[Any], output: Any = None) -> Recording:
    """Record the model on example inputs; only shapes, dtypes and integer values of these matter."""
    validate(model, inputs)
    try:
        resized = _one_example(model, inputs, output)
        return resized if resized is not None else _record_once(model, inputs, output)
    except UnsupportedOperation:
        raise
    except (RuntimeError, IndexError) as error:
        shapes = [tuple(a.shape) for a in tree_leaves(list(inputs)) if isinstance(a, Tensor)]
        raise ValueError(f"the model's forward failed on example inputs of shapes {shapes}: {error}") from error


def _one_example(model: nn.Module, inputs: Sequence[Any], output: Any) -> Recording | None:
    """A recording with the batch dimension at size 1, or None where no batch dimension is found."""
    tensors = [a for a in inputs if isinstance(a, Tensor)]
    if not tensors or len(tensors) != len([a for a in tree_leaves(list(inputs)) if isinstance(a, Tensor)]):
        return None
    sizes = {t.shape[d] for t in tensors for d in range(min(2, t.dim()))}
    choices = [[d for d in range(min(2, t.dim())) if t.dim() > 1 or not t.is_floating_point()] for t in tensors]
    for dims in sorted(itertools.product(*choices), key=lambda d: (len(set(d)), d)):
        if len({t.shape[d] for t, d in zip(tensors, dims)}) > 1:
            continue
        try:
            one = _record_once(model, _resized(inputs, dims, 1), output)
            two = _record_once(model, _resized(inputs, dims, 2), output)
        except UnsupportedOperation:
            raise
        except Exception:  # the model cannot be run at that size: this is not its batch dimension
            continue
        assert one.output is not None and two.output is not None
        if two.output.shape.numel() == 2 * one.output.shape.numel() and _same_steps(one, two):
            return one
    del sizes
    return None


def _resized(inputs: Sequence[Any], dims: Sequence[int], size: int) -> list[Any]:
    remaining = iter(dims)

    def resize(t: Any) -> Any:
        if not isinstance(t, Tensor):
            return t
        dim = next(remaining)
        return t.narrow(dim, 0, 1).repeat_interleave(size, dim)

    return [resize(t) for t in inputs]


def _same_steps(one: Recording, two: Recording) -> bool:
    def signature(recording: Recording) -> list[Any]:
        return [(s.operation, s.where, _steps_of(s)) for s in recording.steps]

    return signature(one) == signature(two)


def _steps_of(step: Step) -> int:
    """How often a recurrent step applies its weights: a dimension that changes it is time, not the batch."""
    if step.operation != "rnn_relu" or not isinstance(step.args[2], (list, tuple)):
        return 1
    return step.args[0].shape[1 if step.args[-1] else 0]


def validate(model: nn.Module, inputs: Sequence[Any]) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"expected a torch.nn.Module, got {type(model).__name__}")
    parameters = dict(model.named_parameters())
    if not parameters:
        raise ValueError("the model has no parameters: there are no paths to measure")
    if not any(isinstance(a, Tensor) for a in tree_leaves(list(inputs))):
        raise ValueError("no example input: pass at least one tensor of the shape the model takes")
    for name, p in parameters.items():
        if isinstance(p, nn.parameter.UninitializedParameter):
            raise ValueError(f"parameter '{name}' is lazy and not initialised; run the model once first")
        if not p.is_floating_point():
            raise TypeError(f"parameter '{name}' is {p.dtype}; path quantities need real floating-point parameters")
        if not bool(torch.isfinite(p.detach()).all()):
            raise ValueError(f"parameter '{name}' has NaN or infinite entries; paths through them have no finite weight")
    dtypes = {p.dtype: name for name, p in parameters.items()}
    if len(dtypes) > 1:
        example = ", ".join(f"'{name}' is {dtype}" for dtype, name in dtypes.items())
        raise TypeError(f"the parameters mix dtypes ({example}); convert the model to one dtype, e.g. model.float()")
    for a in tree_leaves(list(inputs)):
        if isinstance(a, Tensor) and a.is_complex():
            raise TypeError("an example input is complex; path quantities need real inputs")
        if isinstance(a, Tensor) and a.is_floating_point() and a.dtype not in dtypes:
            raise TypeError(f"an example input is {a.dtype} but the parameters are {next(iter(dtypes))}; convert one of them")
