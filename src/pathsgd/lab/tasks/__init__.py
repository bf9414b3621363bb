"""The tasks of the paper and a sixth: one file each, listed here by name.

A task is a frozen dataclass of settings (``AddingTask(length=400)``).  ``prepare`` loads or generates its data::

    task = TASKS["adding"](length=100)
    data = task.prepare()
    stream = data.stream(batch_size=16, seed=0)
    inputs, targets, carry = stream.next()
    loss = task.loss(model(inputs)[0], targets)
    data.evaluate(model, "test")        # in the unit task.metric says

A new task is one new file and one line in ``TASKS``.
"""

from pathsgd.lab.tasks.adding import AddingTask
from pathsgd.lab.tasks.base import (
    Batch,
    BatchStream,
    Metric,
    PaperSettings,
    SequenceModel,
    Split,
    State,
    Task,
    TaskData,
    detach_state,
)


TASKS: dict[str, type[Task]] = {
    "adding": AddingTask,
}

__all__ = [
    "TASKS",
    "AddingTask",
    "Batch",
    "BatchStream",
    "Metric",
    "PaperSettings",
    "SequenceModel",
    "Split",
    "State",
    "Task",
    "TaskData",
    "detach_state",
]
