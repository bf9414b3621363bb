"""From a model and example inputs to a `Recording`: its own forward pass as a list of steps.

The model is not copied or changed, and what is written down does not depend on the values of the weights, so one
recording serves every later pass at the same shapes. It is made with one example (batch.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.distributions import Distribution

from pathsgd.distributed.sharded import put_stand_ins
from pathsgd.errors import UnsupportedOperation
from pathsgd.network.record.batch import one_example
from pathsgd.network.record.inputs import Call, call_of, map_tensors, numbered_tensors
from pathsgd.network.record.outputs import Output, choose, tensors_of, watched
from pathsgd.network.record.path_tensor import Lost, PathTensor
from pathsgd.network.record.preserve import left_as_found
from pathsgd.network.record.recorder import Recorder
from pathsgd.network.record.unwrap import eagerly
from pathsgd.network.record.validation import validate
from pathsgd.network.rules import REFUSED
from pathsgd.network.tape import Recording, Value

__all__ = ["Output", "record"]


def record(model: nn.Module, inputs: Sequence[Any] | Call, output: Output = None) -> Recording:
    """Record the model on example inputs; only their shapes, dtypes and the values that are structure matter."""
    call = inputs if isinstance(inputs, Call) else call_of(model, inputs)
    validate(model, call)

    def as_is(resized: Call) -> Recording:
        return _record(model, resized, output)

    return one_example(as_is, call) or as_is(call)


def _record(model: nn.Module, call: Call, output: Output) -> Recording:
    with eagerly(), left_as_found(model) as untouched, _unchecked_distributions():
        put_stand_ins(model)
        recorder = Recorder(model)
        return _recorded(recorder, model, call, output, untouched)


def _is_one_tuple(call: Call) -> bool:
    return len(call.args) == 1 and isinstance(call.args[0], (tuple, list)) and not call.kwargs


@contextmanager
def _unchecked_distributions() -> Iterator[None]:
    """Distributions look at the values of their arguments, which stand-ins do not have."""
    before = Distribution._validate_args
    Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        Distribution.set_default_validate_args(before)


def _recorded(
    recorder: Recorder, model: nn.Module, call: Call, output: Output, untouched: Callable[[], bool]
) -> Recording:
    numbers = iter(range(len(numbered_tensors(call))))
    stand_ins = map_tensors(lambda a: recorder.input(a, next(numbers)), call)
    with watched(model, output, recorder.afresh) as submodules, recorder:
        try:
            result = model(*stand_ins.args, **stand_ins.kwargs)
        except UnsupportedOperation:
            if not submodules.complete:
                raise
            result = None  # what comes after all that is measured is nobody's business
        except Exception as error:
            if recorder.met_unseen is not None:
                raise recorder.met_unseen from error
            if "does not require grad" in str(error):  # torch says so of values without data
                advice = REFUSED["autograd.grad"]
                raise UnsupportedOperation(
                    "autograd.grad", "the model itself", advice, recorder.recording
                ) from error
            shapes = [tuple(a.shape) for a in numbered_tensors(call)]
            what = (
                f"{error}; pass several inputs one by one, not as a tuple"
                if _is_one_tuple(call)
                else error
            )
            raise ValueError(
                f"the model's forward failed on example inputs of shapes {shapes}: {what}"
            ) from error
        measured = [recorder.value_of(tensor) for tensor in choose(result, output, submodules)]
        returned = [
            recorder.value_of(tensor)
            for tensor in tensors_of(result)
            if isinstance(tensor, PathTensor)
        ]
        recorder.recording.steered |= not untouched()
    for value in measured:
        if isinstance(value, Lost):
            raise value.refusal
    recording = recorder.recording
    recording.outputs = list(dict.fromkeys(value for value in measured if isinstance(value, Value)))
    if (
        output is None
    ):  # else the user has said which results are the function; a state that is carried on is none
        recording.returned = [
            value for value in returned if isinstance(value, Value) and not isinstance(value, Lost)
        ]
    if not recording.outputs:
        raise ValueError(
            "the model's output depends on neither its inputs nor its parameters: there is no path"
        )
    return recording
