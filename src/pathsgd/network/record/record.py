"""From a model and example inputs to a `Recording`: its own forward pass as a list of steps.

The model is neither copied nor changed, and the recording does not depend on the values of the
weights: one recording serves every later pass at the same shapes. It is made with one example.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

from torch import Tensor, nn
from torch.distributions import Distribution

from pathsgd.distributed.sharded import put_stand_ins
from pathsgd.errors import UnsupportedOperation
from pathsgd.network.record.batch import one_example
from pathsgd.network.record.inputs import Call, call_of, map_tensors, numbered_tensors
from pathsgd.network.record.model import eagerly, validate
from pathsgd.network.record.outputs import Output, choose, tensors_of, watched
from pathsgd.network.record.path_tensor import Lost, PathTensor
from pathsgd.network.record.preserve import left_as_found
from pathsgd.network.record.recorder import Recorder
from pathsgd.network.rules import REFUSED
from pathsgd.network.tape import Recording, Value

__all__ = ["Output", "record"]


def record(model: nn.Module, inputs: Sequence[Any] | Call, output: Output = None) -> Recording:
    """Record the model on example inputs; only shapes, dtypes and structural values matter."""
    call = inputs if isinstance(inputs, Call) else call_of(model, inputs)
    validate(model, call)

    def as_is(resized: Call) -> Recording:
        return record_as_is(model, resized, output)

    return one_example(as_is, call) or as_is(call)


def record_as_is(model: nn.Module, call: Call, output: Output = None) -> Recording:
    """Record the model on these inputs, whatever the batch."""
    with eagerly(), left_as_found(model) as used_random_numbers, _unchecked_distributions():
        put_stand_ins(model)
        return _recorded(model, call, output, used_random_numbers)


@contextmanager
def _unchecked_distributions() -> Iterator[None]:
    """Distributions check the values of their arguments, which stand-ins do not have."""
    before = Distribution._validate_args
    Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        Distribution.set_default_validate_args(before)


def _recorded(
    model: nn.Module, call: Call, output: Output, used_random_numbers: Callable[[], bool]
) -> Recording:
    recorder = Recorder(model)
    operands, recording = recorder.operands, recorder.recording
    numbers = iter(range(len(numbered_tensors(call))))
    stand_ins = map_tensors(lambda a: operands.input(a, next(numbers)), call)
    with watched(model, output, operands.restarted) as submodules, recorder:
        try:
            result = model(*stand_ins.args, **stand_ins.kwargs)
        except UnsupportedOperation:
            if not submodules.complete:
                raise
            result = None  # everything that is measured comes before the failure
        except Exception as error:
            _explain(error, recorder, call)
        measured = [operands.value_of(t) for t in choose(result, output, submodules)]
        recording.branches_at_random |= used_random_numbers()
    for value in measured:
        if isinstance(value, Lost):
            raise value.refusal
    recording.outputs = list(dict.fromkeys(v for v in measured if isinstance(v, Value)))
    if not recording.outputs:
        raise ValueError(
            "the model's output depends on neither its inputs nor its parameters: there is no path"
        )
    if output is None:  # otherwise the user has chosen the outputs; a carried state is none
        recording.returned = _values(tensors_of(result))
    return recording


def _values(tensors: Sequence[Tensor]) -> list[Value]:
    found = [t.value for t in tensors if isinstance(t, PathTensor)]
    return [value for value in found if not isinstance(value, Lost)]


def _explain(error: Exception, recorder: Recorder, call: Call) -> NoReturn:
    """Raise what a failure of the model's forward means."""
    if recorder.met_unseen is not None:
        raise recorder.met_unseen from error
    if "does not require grad" in str(error):  # torch's complaint about tensors without data
        name = "autograd.grad"
        raise UnsupportedOperation(
            name, "the model itself", REFUSED[name], recorder.recording
        ) from error
    shapes = [tuple(a.shape) for a in numbered_tensors(call)]
    is_one_tuple = len(call.args) == 1 and isinstance(call.args[0], tuple | list)
    advice = "; pass several inputs one by one, not as a tuple" if is_one_tuple else ""
    what = f"the model's forward failed on example inputs of shapes {shapes}"
    raise ValueError(f"{what}: {error}{advice}") from error
