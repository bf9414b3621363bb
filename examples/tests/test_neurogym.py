from pathlib import Path

import pytest

from with_neurogym import CHOICES, IGNORED, Options, main, make_task, trials

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*render_modes"
)  # of gymnasium, about neurogym's own tasks


def test_trials_are_padded_to_the_longest():
    x, y, evidence = trials(make_task(seed=0), 20)
    assert x.shape == (*y.shape, 3) and evidence.shape == (20,)
    lengths = (y != IGNORED).sum(0)
    assert lengths.min() < lengths.max() == len(x)
    assert set(y.unique().tolist()) == {IGNORED, *range(CHOICES)}


def test_the_example_learns_to_decide(tmp_path: Path):
    picture = tmp_path / "decision.png"
    right = main(Options(steps=300, out=picture))
    assert right > 0.8  # of two answers
    assert picture.stat().st_size > 10_000
