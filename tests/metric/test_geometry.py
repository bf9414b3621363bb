"""One model measured again and again."""

import math

import pytest
import torch
from torch import nn

from pathsgd.metric.geometry import Geometry


class TwiceInTraining(nn.Linear):
    def forward(self, x):
        return super().forward(x) * (2 if self.training else 1)


def test_training_and_evaluation_are_measured_apart():
    geometry, x = Geometry(TwiceInTraining(3, 2).double()), torch.zeros(5, 3, dtype=torch.float64)
    found = []
    for mode in (True, False, True):
        geometry.model.train(mode)
        found.append(geometry.measure((x,)).log_gamma_sq)
    assert found[0] == found[2] == pytest.approx(found[1] + math.log(4))
