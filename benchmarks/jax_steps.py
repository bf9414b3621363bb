"""The same training step in JAX (scan and jit, plain SGD), in a process of its own.

    python benchmarks/jax_steps.py A100 [--threads 1] [--seconds 6]
        prints the median seconds of one step

It imports nothing of torch or of this package, so any interpreter that has jax can run it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

# hidden, steps, batch, inputs, outputs, every step has an output, vocabulary (0: no embedding)
SIZES = {
    "A100": (100, 100, 16, 2, 1, False, 0),
    "A400": (100, 400, 16, 2, 1, False, 0),
    "A750": (100, 750, 16, 2, 1, False, 0),
    "M784": (100, 784, 100, 1, 10, False, 0),
    "W20": (200, 20, 32, 200, 10_000, True, 10_000),
    "C50": (2048, 50, 64, 50, 50, True, 50),
}


def jax_seconds(python: str, name: str, threads: int, seconds: float) -> float:
    """Median seconds of a step, from `python`, an interpreter that has jax."""
    command = [
        python,
        str(Path(__file__)),
        name,
        "--threads",
        str(threads),
        "--seconds",
        str(seconds),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(
            f"the JAX column failed in {python}:\n{done.stderr.strip().splitlines()[-1]}"
        )
    return float(done.stdout)


def median_step(name: str, seconds: float) -> float:
    try:
        import jax
        import jax.numpy as jnp
    except ImportError:
        raise SystemExit(
            f"{sys.executable} has no jax: install jax there, or give --jax another interpreter"
        ) from None
    hidden, steps, batch, inputs, outputs, every_step, vocabulary = SIZES[name]
    keys = iter(jax.random.split(jax.random.PRNGKey(0), 8))

    def normal(*shape: int) -> jax.Array:
        return jax.random.normal(next(keys), shape) * shape[-1] ** -0.5

    weights = {
        "in": normal(hidden, inputs),
        "rec": normal(hidden, hidden),
        "bias": jnp.zeros(hidden),
    }
    weights |= {"out": normal(outputs, hidden), "out_bias": jnp.zeros(outputs)}
    if vocabulary > inputs:
        weights["table"] = normal(vocabulary, inputs)
    rows = (steps, batch) if every_step else (batch,)
    if vocabulary:
        x = jax.random.randint(next(keys), (steps, batch), 0, vocabulary)
    else:
        x = jax.random.uniform(next(keys), (steps, batch, inputs))
    y = jax.random.randint(next(keys), rows, 0, outputs)

    def loss(w: dict[str, jax.Array]) -> jax.Array:
        features = (
            w["table"][x] if "table" in w else jax.nn.one_hot(x, vocabulary) if vocabulary else x
        )

        def one_step(h: jax.Array, z: jax.Array) -> tuple[jax.Array, jax.Array | None]:
            h = jax.nn.relu(z + h @ w["rec"].T)
            return h, h if every_step else None

        last, states = jax.lax.scan(
            one_step, jnp.zeros((batch, hidden)), features @ w["in"].T + w["bias"]
        )
        out = (states if every_step else last) @ w["out"].T + w["out_bias"]
        if outputs == 1:
            return jnp.mean((out[..., 0] - y) ** 2)
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(out), y[..., None], -1))

    @jax.jit
    def sgd(w: dict[str, jax.Array]) -> dict[str, jax.Array]:
        return jax.tree_util.tree_map(lambda p, g: p - 1e-9 * g, w, jax.grad(loss)(w))

    for _ in range(2):
        weights = jax.block_until_ready(sgd(weights))
    taken: list[float] = []
    start = time.perf_counter()
    while len(taken) < 5 or (len(taken) < 200 and time.perf_counter() - start < seconds):
        before = time.perf_counter()
        weights = jax.block_until_ready(sgd(weights))
        taken.append(time.perf_counter() - before)
    return statistics.median(taken)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("setting", choices=SIZES)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=6.0)
    options = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):  # XLA takes as many threads as the process may use cores
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.threads])
    print(median_step(options.setting, options.seconds))


if __name__ == "__main__":
    main()
