"""Which kernel is chosen, what is said about it, and what it leaves untouched in the process."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from typing import Any

import pytest
import torch

import pathsgd.nn
from pathsgd.kernels import native

ALL_BUILT = {"generic": "", "avx2": "", "avx512": ""}
NONE_BUILT = dict.fromkeys(ALL_BUILT, "no compiler")


@pytest.mark.parametrize(
    ("forced", "level", "built", "name"),
    [
        (None, 2, ALL_BUILT, "avx512"),
        (None, 1, ALL_BUILT, "avx2"),
        (None, 0, ALL_BUILT, "generic"),
        (None, 2, ALL_BUILT | {"avx512": "not built"}, "avx2"),
        (None, 2, NONE_BUILT | {"generic": ""}, "generic"),
        (None, 0, NONE_BUILT, "torch"),
        ("0", 2, ALL_BUILT, "torch"),
        ("generic", 2, ALL_BUILT, "generic"),
        ("avx2", 2, ALL_BUILT, "avx2"),
    ],
)
def test_choice(forced: str | None, level: int, built: dict[str, str], name: str) -> None:
    chosen, reason = native.choose(forced, level, built)
    assert chosen == name and reason


@pytest.mark.parametrize(
    ("forced", "level", "built", "error", "message"),
    [
        ("sse9", 2, ALL_BUILT, ValueError, "sse9.*not one of 0, generic, avx2, avx512"),
        ("avx512", 1, ALL_BUILT, RuntimeError, "supports avx2 at most"),
        ("avx2", 1, NONE_BUILT, RuntimeError, "missing: no compiler"),
    ],
)
def test_impossible_choices_are_refused(
    forced: str, level: int, built: dict[str, str], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        native.choose(forced, level, built)


PROGRAM = """
import torch, pathsgd.nn
torch.manual_seed(0)
rnn = pathsgd.nn.RNN(2, 9, nonlinearity="relu")
rnn(torch.rand(6, 5, 2))[1].sum().backward()
print(pathsgd.nn.backend().name, float(rnn.weight_hh_l0.grad.double().norm()))
"""


@pytest.mark.parametrize("forced", ["0", "generic", "nonsense"])
def test_the_environment_variable_decides(forced: str) -> None:
    environment = os.environ | {"PATHSGD_NATIVE": forced}
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
    )
    generic = native._open("kernel_generic")[0]
    if forced == "0" or (forced == "generic" and generic is not None):
        torch.manual_seed(0)
        rnn = torch.nn.RNN(2, 9, nonlinearity="relu")
        rnn(torch.rand(6, 5, 2))[1].sum().backward()
        name, norm = run.stdout.split()
        assert name == ("torch" if forced == "0" else forced)
        assert float(norm) == pytest.approx(rnn.weight_hh_l0.grad.double().norm().item(), rel=1e-5)
    else:
        assert run.returncode != 0 and "PATHSGD_NATIVE" in run.stderr.splitlines()[-1]


def test_a_library_of_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "INTERFACE_VERSION", -1)
    library, problem = native._open("kernel_generic")
    assert library is None and problem


def test_a_missing_thread_library_means_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    original = native._open
    monkeypatch.setattr(
        native, "_open", lambda name: (None, "gone") if name == "threads" else original(name)
    )
    backend = native.load.__wrapped__().backend
    assert backend.name == pathsgd.nn.backend().name
    assert backend.name == "torch" or (not backend.threaded and "gone" in str(backend))


def test_no_second_openmp_runtime_is_loaded() -> None:
    """Threads come from the runtime that torch has loaded.

    A second pool would fight it for the processor.
    """
    program = """
import torch, pathsgd.nn
runtimes = lambda: {line.split()[-1] for line in open("/proc/self/maps") if "omp" in line}
before = runtimes()
torch.set_num_threads(2)
pathsgd.nn.RNN(2, 3, nonlinearity="relu")(torch.rand(4, 2, 2))
assert before and runtimes() == before
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def gradients(threads: int) -> list[torch.Tensor]:
    torch.manual_seed(0)
    rnn = pathsgd.nn.RNN(2, 20, nonlinearity="relu", dtype=torch.float64)
    x = torch.rand(6, 9, 2, dtype=torch.float64)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        rnn(x)[0].square().sum().backward()
    finally:
        torch.set_num_threads(before)
    return [p.grad for p in rnn.parameters() if p.grad is not None]


def test_fewer_threads_may_arrive_than_were_asked_for() -> None:
    """The sums of threads that never came count as zero."""
    library, expected = native.load().library, gradients(1)
    body_type = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_int)
    asked: list[int] = []

    @ctypes.CFUNCTYPE(None, ctypes.c_int, body_type, ctypes.c_void_p)
    def only_two(threads: int, body: Any, context: Any) -> None:
        asked.append(threads)
        for thread in range(2):
            body(context, thread, 2)

    if library is None:
        assert pathsgd.nn.backend().name == "torch"
        return
    library.pathsgd_set_thread_runner(only_two)
    try:
        found = gradients(4)
    finally:
        library.pathsgd_set_thread_runner(None)
        native.load.__wrapped__()
    assert asked == [4, 4]
    torch.testing.assert_close(found, expected)


def test_denormal_numbers_survive_outside_the_kernel() -> None:
    """Denormals are flushed inside the kernel's own calls only, in every thread it borrows."""
    gradients(2)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    tiny = torch.full((1_000_000,), 1e-40) * 0.5
    torch.set_num_threads(before)
    assert (tiny > 0).all()
    assert 5e-324 * 1.0 > 0


FIRST_CALL = {
    "forward and backward": "pathsgd.nn.RNN(4, 40, nonlinearity='relu')("
    "torch.rand(5, 8, 4))[0].sum().backward()",
    "kappa1": "pathsgd.gamma_sq(net := Net(), x); "
    "pathsgd.PathSGD(net, 1e-3, example_inputs=(x,)).measure()",
    "output loss": "pathsgd.nn.linear_cross_entropy("
    "x[:, 0], torch.rand(4000, 3), None, torch.zeros(60, dtype=int))",
}


@pytest.mark.parametrize("call", FIRST_CALL.values(), ids=FIRST_CALL)
def test_threads_that_the_kernel_calls_into_being_keep_denormals(call: str) -> None:
    """A new thread begins with the settings of the one that creates it."""
    script = f"""
import torch, pathsgd
torch.set_num_threads(2)
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.out = torch.nn.RNN(3, 200, nonlinearity="relu"), torch.nn.Linear(200, 2)
    def forward(self, x):
        return self.out(self.rnn(x)[0][-1])
x = torch.ones(60, 1, 3)
{call}
assert (torch.full((1_000_000,), 1e-40) * 0.5 > 0).all()
"""
    subprocess.run([sys.executable, "-c", script], check=True)
