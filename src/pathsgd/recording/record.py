"""From a model and example inputs to a `Recording`: its own forward pass as a list of steps.

The model is not copied or changed, and what is written down does not depend on the values of the weights, so one
recording serves every later pass at the same shapes. It is made with one example (batch.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from pathsgd.errors import UnsupportedOperation
from pathsgd.recording.batch import one_example
from pathsgd.recording.preserve import left_as_found
from pathsgd.recording.recorder import Recorder
from pathsgd.recording.unwrap import eagerly
from pathsgd.recording.validation import tensors_in, validate
from pathsgd.tape import Recording, Value

Output = int | str | Callable[[Any], Any] | None
"""Which of a model's results to measure: an index, a key, or a function; None takes the first tensor."""


def record(model: nn.Module, inputs: Sequence[Any], output: Output = None) -> Recording:
    """Record the model on example inputs; only their shapes, dtypes and integer values matter."""
    validate(model, inputs)

    def as_is(resized: Sequence[Any]) -> Recording:
        return _record(model, resized, output)

    return one_example(as_is, inputs) or as_is(inputs)


def _record(model: nn.Module, inputs: Sequence[Any], output: Output) -> Recording:
    recorder = Recorder(model)
    stand_ins = tree_map(lambda a: recorder.input(a) if isinstance(a, Tensor) else a, list(inputs))
    with eagerly(), left_as_found(model), recorder:
        try:
            result = model(*stand_ins)
        except UnsupportedOperation:
            raise
        except Exception as error:
            if recorder.met_unseen is not None:
                raise recorder.met_unseen from error
            shapes = [tuple(a.shape) for a in tensors_in(inputs)]
            raise ValueError(f"the model's forward failed on example inputs of shapes {shapes}: {error}") from error
        value = recorder.value_of(choose_output(result, output))
    if not isinstance(value, Value):
        raise ValueError("the model's output depends on neither its inputs nor its parameters: there is no path")
    recorder.recording.output = value
    return recorder.recording


def choose_output(result: Any, output: Output) -> Any:
    """The tensor to measure: the first one of a tuple or dict unless `output` chooses another."""
    if callable(output):
        result = output(result)
    elif output is not None:
        try:
            result = result[output]
        except (KeyError, IndexError, TypeError) as error:
            raise ValueError(f"output={output!r} does not fit what the model returned ({_describe(result)})") from error
    for leaf in tree_leaves(list(result.values()) if isinstance(result, Mapping) else result):
        if isinstance(leaf, Tensor):
            return leaf
    raise ValueError(f"there is no tensor in the output ({_describe(result)}); choose one with output=")


def _describe(result: Any) -> str:
    if isinstance(result, Mapping):
        return f"a dict with keys {sorted(map(str, result))}"
    if isinstance(result, (tuple, list)):
        return f"a {type(result).__name__} of length {len(result)}"
    return f"a {type(result).__name__}"
