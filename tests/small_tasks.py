"""Small tasks of every shape, a random batch of each, and small systems for them."""

import torch
from torch import nn

from pathsgd_lab.systems import SYSTEMS, System
from pathsgd_lab.tasks import (
    AddingTask,
    Batch,
    CopyTask,
    DecisionTask,
    MnistAutoencoderTask,
    PtbCharTask,
    PtbWordTask,
    SequentialMnistTask,
    Task,
    Text8Task,
)

# All shapes of tasks: numbers or symbols in, last or every step out, few or many symbols.
TASKS: dict[str, Task] = {
    "adding": AddingTask(length=9),
    "smnist": SequentialMnistTask(subsample=7),
    "mnist_autoencoder": MnistAutoencoderTask(subsample=7),
    "decision": DecisionTask(length=8),
    "copy": CopyTask(lag=2),
    "ptb_char": PtbCharTask(window=6),
    "text8": Text8Task(window=6),
    "ptb_word": PtbWordTask(window=5, vocabulary=300),
}
BATCH = 3


def random_batch(task: Task, seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    steps = (task.length, BATCH) if task.every_step else (BATCH,)
    if task.tokens:
        inputs = torch.randint(task.input_size, (task.length, BATCH), generator=generator)
    else:
        inputs = torch.rand(task.length, BATCH, task.input_size, generator=generator)
    if task.metric == "mse":
        targets = torch.rand(*steps, task.output_size, generator=generator)
    else:
        targets = torch.randint(task.output_size, steps, generator=generator)
    return Batch(inputs, targets, carry=False)


def build(system: str, task: Task, hidden: int = 12) -> tuple[System, nn.Module]:
    settings_ = SYSTEMS[system](
        hidden=8 * hidden if system == "autoencoder" else hidden
    )  # its middle is narrower
    return settings_, settings_.build(task, seed=1)
