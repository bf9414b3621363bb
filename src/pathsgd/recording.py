"""From a model and example inputs to a `Recording`: its own forward pass as a list of steps.

The model is not copied or changed, and what is written down does not depend on the values of the weights, so one
recording serves every later evaluation at the same shapes.

The batch. gamma^2 belongs to the network, not to a batch of examples. The batch dimension is the first one along
which the model treats slices separately: resized, it leaves the steps as they are and the output grows in proportion.
The recording is made with one example; where no batch dimension is found, with the inputs as they are.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from pathsgd.errors import UnsupportedOperation
from pathsgd.recorder import Recorder
from pathsgd.rules.base import Recording, Step, Value

Output = int | str | Callable[[Any], Any] | None
"""Which of a model's results to measure: an index, a key, or a function; None takes the first tensor."""


def record(model: nn.Module, inputs: Sequence[Any], output: Output = None) -> Recording:
    """Record the model on example inputs; only their shapes, dtypes and integer values matter."""
    validate(model, inputs)
    try:
        return _one_example(model, inputs, output) or _record_as_is(model, inputs, output)
    except UnsupportedOperation:
        raise
    except (RuntimeError, IndexError) as error:
        shapes = [tuple(a.shape) for a in _tensors(inputs)]
        raise ValueError(f"the model's forward failed on example inputs of shapes {shapes}: {error}") from error


def _tensors(inputs: Sequence[Any]) -> list[Tensor]:
    return [a for a in tree_leaves(list(inputs)) if isinstance(a, Tensor)]


def _record_as_is(model: nn.Module, inputs: Sequence[Any], output: Output) -> Recording:
    recorder = Recorder(model)
    stand_ins = tree_map(
        lambda a: recorder.input(a) if isinstance(a, Tensor) and a.is_floating_point() else a, list(inputs)
    )
    with left_as_found(model), recorder:
        value = recorder.value_of(choose_output(model(*stand_ins), output))
    if not isinstance(value, Value):
        raise ValueError("the model's output depends on neither its inputs nor its parameters: there is no path")
    recorder.recording.output = value
    return recorder.recording


def _one_example(model: nn.Module, inputs: Sequence[Any], output: Output) -> Recording | None:
    """A recording with the batch dimension at size 1, or None where there is no batch dimension."""
    tensors = [a for a in inputs if isinstance(a, Tensor)]
    if not tensors or len(tensors) != len(_tensors(inputs)):
        return None  # nested inputs (packed sequences, dicts): taken as they are
    candidates = itertools.product(*(range(min(2, t.dim())) for t in tensors))
    for dims in sorted(candidates, key=lambda d: (len(set(d)), d)):
        if len({t.shape[d] for t, d in zip(tensors, dims)}) > 1:
            continue
        try:
            one, two = (_record_as_is(model, _resized(inputs, dims, size), output) for size in (1, 2))
        except UnsupportedOperation:
            raise
        except Exception:
            continue
        if _treats_slices_separately(one, two):
            return one
    return None


def _resized(inputs: Sequence[Any], dims: Sequence[int], size: int) -> list[Any]:
    remaining = iter(dims)

    def resize(a: Any) -> Any:
        if not isinstance(a, Tensor):
            return a
        dim = next(remaining)
        return a.narrow(dim, 0, 1).repeat_interleave(size, dim)

    return [resize(a) for a in inputs]


def _treats_slices_separately(one: Recording, two: Recording) -> bool:
    assert one.output is not None and two.output is not None
    grows = two.output.shape.numel() == 2 * one.output.shape.numel()
    return grows and [_signature(s) for s in one.steps] == [_signature(s) for s in two.steps]


def _signature(step: Step) -> tuple[Any, ...]:
    """What must not change with the batch size; a recurrent layer's number of steps tells time from batch."""
    return step.operation, step.where, step.rule.repeats(*step.args, **step.kwargs)


@contextmanager
def left_as_found(model: nn.Module) -> Iterator[None]:
    """Whatever the forward pass does to modules, buffers or the random state is undone, also when it raises."""
    attributes = [(vars(m), dict(vars(m))) for m in model.modules()]
    containers = [(c, c.copy()) for _, d in attributes for c in d.values() if isinstance(c, (dict, list, set))]
    buffers = [(b, b._version, b.detach().clone()) for b in model.buffers()]
    devices = sorted({p.device.index for p in model.parameters() if p.device.type == "cuda"})
    with torch.random.fork_rng(devices=devices), torch.no_grad():
        try:
            yield
        finally:
            for buffer, version, before in buffers:
                if buffer._version != version:
                    with torch.autograd._unsafe_preserve_version_counter(buffer):
                        buffer.copy_(before)
            for now, before in [*attributes, *containers]:
                now.clear()
                now.extend(before) if isinstance(now, list) else now.update(before)


def choose_output(result: Any, output: Output) -> Any:
    """The tensor to measure: the first one of a tuple or dict unless `output` chooses another."""
    if callable(output):
        return output(result)
    if output is not None:
        try:
            return result[output]
        except (KeyError, IndexError, TypeError) as error:
            raise ValueError(f"output={output!r} does not fit what the model returned ({_describe(result)})") from error
    leaves = tree_leaves(list(result.values()) if isinstance(result, Mapping) else result)
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            return leaf
    raise ValueError(f"the model returned no tensor ({_describe(result)}); choose one with output=")


def _describe(result: Any) -> str:
    if isinstance(result, Mapping):
        return f"a dict with keys {sorted(map(str, result))}"
    if isinstance(result, (tuple, list)):
        return f"a {type(result).__name__} of length {len(result)}"
    return f"a {type(result).__name__}"


def validate(model: nn.Module, inputs: Sequence[Any]) -> None:
    """Raise for what no measurement can make sense of, naming what is wrong."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"expected a torch.nn.Module, got {type(model).__name__}")
    parameters = dict(model.named_parameters())
    if not parameters:
        raise ValueError("the model has no parameters: there are no paths to measure")
    for name, p in parameters.items():
        if isinstance(p, nn.parameter.UninitializedParameter):
            raise ValueError(f"parameter '{name}' is lazy and not initialised; run the model once first")
        if not p.is_floating_point():
            raise TypeError(f"parameter '{name}' is {p.dtype}; path quantities need real floating-point parameters")
        if not bool(torch.isfinite(p.detach()).all()):
            raise ValueError(f"parameter '{name}' has NaN or infinite entries; its paths have no finite weight")
    dtypes = {p.dtype: name for name, p in parameters.items()}
    if len(dtypes) > 1:
        examples = ", ".join(f"'{name}' is {dtype}" for dtype, name in dtypes.items())
        raise TypeError(f"the parameters mix dtypes ({examples}); convert the model to one, e.g. model.float()")
    if not _tensors(inputs):
        raise ValueError("no example input: pass at least one tensor of the shape the model takes")
    for a in _tensors(inputs):
        if a.is_complex():
            raise TypeError("an example input is complex; path quantities need real inputs")
        if a.is_floating_point() and a.dtype not in dtypes:
            raise TypeError(f"an example input is {a.dtype} but the parameters are {next(iter(dtypes))}; convert one")
        if a.numel() == 0:
            raise ValueError(
                f"an example input is empty (shape {tuple(a.shape)}); give it at least one step and example"
            )
