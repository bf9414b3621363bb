"""Forks after the kernel has used threads.

Run as a program, because what else a process has done matters here.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys

import torch
from torch.utils.data import DataLoader, Dataset

import pathsgd.nn


def last_state(seed: int) -> torch.Tensor:
    """Forward and backward with two threads asked for."""
    torch.manual_seed(seed)
    rnn = pathsgd.nn.RNN(2, 20, nonlinearity="relu")
    _, h_n = rnn(torch.rand(6, 8, 2))
    h_n.sum().backward()
    return torch.cat([h_n.detach().flatten(), rnn.weight_hh_l0.grad.flatten()])


class States(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        torch.set_num_threads(
            2
        )  # a DataLoader sets one thread in its workers; a user may undo that
        return last_state(index)


def in_the_workers_of_a_data_loader() -> None:
    expected = torch.stack(
        [last_state(i) for i in range(4)]
    )  # the parent's pool of threads now exists
    context = multiprocessing.get_context("fork")
    loader = DataLoader(States(), batch_size=4, num_workers=2, multiprocessing_context=context)
    (found,) = loader
    torch.testing.assert_close(found, expected)


def in_a_plain_fork() -> None:
    expected = last_state(0)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:  # no test machinery may run here
        os.write(writer, last_state(0).numpy().tobytes())
        os._exit(0)
    os.close(writer)
    try:
        found = torch.frombuffer(bytearray(os.read(reader, 1 << 20)), dtype=torch.float32)
    finally:
        os.close(reader)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(last_state(0), expected)  # and the parent goes on with its threads


if __name__ == "__main__":
    torch.set_num_threads(2)
    {"workers": in_the_workers_of_a_data_loader, "fork": in_a_plain_fork}[sys.argv[1]]()
