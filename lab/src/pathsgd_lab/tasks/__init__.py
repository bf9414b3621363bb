"""The tasks of the paper and some others: one file each, listed here by name.

A task is a frozen dataclass of settings (``AddingTask(length=400)``).  ``prepare`` loads or
generates its data::

    task = TASKS["adding"](length=100)
    data = task.prepare()
    stream = data.stream(batch_size=16, seed=0)
    inputs, targets, carry = stream.next()
    loss = task.loss(model(inputs)[0], targets)
    data.evaluate(model, "test")        # in the unit task.metric says

A new task is one new file and one line in ``TASKS``.
"""

from pathsgd_lab.tasks.adding import AddingTask
from pathsgd_lab.tasks.base import (
    Batch,
    BatchStream,
    Metric,
    PaperSettings,
    Split,
    State,
    Task,
    TaskData,
    detach_state,
)
from pathsgd_lab.tasks.copy_memory import CopyTask
from pathsgd_lab.tasks.decision import DecisionTask
from pathsgd_lab.tasks.mnist_autoencoder import MnistAutoencoderTask
from pathsgd_lab.tasks.ptb_char import PtbCharTask
from pathsgd_lab.tasks.ptb_word import PtbWordTask
from pathsgd_lab.tasks.smnist import PermutedMnistTask, SequentialMnistTask
from pathsgd_lab.tasks.text8 import Text8Task

TASKS: dict[str, type[Task]] = {
    task.name: task
    for task in (
        AddingTask, CopyTask, SequentialMnistTask, PermutedMnistTask, PtbWordTask, PtbCharTask,
        Text8Task, MnistAutoencoderTask, DecisionTask,
    )
}  # fmt: skip

__all__ = [
    "TASKS", "AddingTask", "Batch", "BatchStream", "CopyTask", "DecisionTask", "Metric",
    "MnistAutoencoderTask", "PaperSettings", "PermutedMnistTask", "PtbCharTask", "PtbWordTask",
    "SequentialMnistTask", "Split", "State", "Task", "TaskData", "Text8Task", "detach_state",
]  # fmt: skip
