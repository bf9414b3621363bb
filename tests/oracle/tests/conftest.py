"""Small networks of every kind, parameters from a fixed seed; enumeration allows no larger ones."""

import zlib

import numpy as np
import pytest

from oracle import build

CASES = {
    "mlp": lambda: build.mlp([3, 2, 2, 2]),
    "mlp without bias": lambda: build.mlp([2, 3, 1], bias=False),
    "rnn": lambda: build.rnn(2, [2], 2, steps=4),
    "rnn, every step": lambda: build.rnn(2, [2], 1, steps=3, every_step=True),
    "deep rnn": lambda: build.rnn(1, [2, 2], 1, steps=3, bias=False),
    "bidirectional rnn": lambda: build.rnn(1, [2], 1, steps=3, bidirectional=True, every_step=True),
    "rnn read by its states": lambda: build.rnn(1, [2, 1], None, steps=3, every_step=True),
    "conv1d": lambda: build.conv1d(2, 2, kernel=3, length=5, padding=1, stride=2),
    "chain": lambda: build.chain(3),
    "residual": lambda: build.residual(2, 2, 2, 2, blocks=2),
    "random": lambda: build.random_network(np.random.default_rng(3)),
    "random, more sharing": lambda: build.random_network(
        np.random.default_rng(4), hidden=5, parameters=2
    ),
}


@pytest.fixture(params=list(CASES))
def case(request):
    """(network, layout, p) of one small network."""
    network, layout = CASES[request.param]()
    rng = np.random.default_rng(zlib.crc32(request.param.encode()))
    return network, layout, rng.normal(size=network.parameter_count)
