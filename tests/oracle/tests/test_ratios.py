"""The paper's table of ||kappa2|| / ||kappa1||, in its convention and in the exact one."""

import numpy as np
import pytest

from oracle.ratios import PAPER, main, ratio_table

# One seed of an independent implementation (paper's convention), H -> ratios for T = 10, 20, 40.
INDEPENDENT = {
    100: (0.00042, 0.00045, 0.00047),
    200: (0.00026, 0.00030, 0.00031),
    400: (0.00014, 0.00017, 0.00022),
}


@pytest.fixture(scope="module")
def uniform_table():
    return ratio_table(seeds=range(2))


def test_printed_ratios_are_reproduced_in_the_papers_convention(uniform_table):
    # Seeds differ by about 7 % at H = 100; the printed figures have two digits and one unknown
    # seed.
    for cell in uniform_table:
        assert cell.paper.mean() == pytest.approx(PAPER[cell.hidden][cell.steps], rel=0.2)


def test_ratios_match_an_independent_implementation(uniform_table):
    for cell in uniform_table:
        expected = INDEPENDENT[cell.hidden][(10, 20, 40).index(cell.steps)]
        assert cell.paper.mean() == pytest.approx(expected, rel=0.15)


def test_exact_ratios_are_four_times_the_papers(uniform_table):
    for cell in uniform_table:
        np.testing.assert_allclose(cell.exact, 4 * cell.paper, rtol=1e-12)


def test_identity_initialisation_makes_kappa2_dominate_the_diagonal():
    (cell,) = ratio_table(
        hidden=[5], steps=[30], seeds=[0], init="identity", every_step=False, vocabulary=50
    )
    np.testing.assert_allclose(cell.diagonal, 4 * 28 / 3, rtol=1e-12)
    assert cell.exact[0] > 1


def test_the_command_prints_the_table(capsys):
    main(["--hidden", "100", "--steps", "10", "20", "--seeds", "1"])
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[-2:]]
    (cell,) = ratio_table(hidden=[100], steps=[20], seeds=[0])
    assert rows[0][:3] == ["100", "10", "0.00037"]
    assert rows[1][:3] == ["100", "20", "0.00044"]
    assert float(rows[1][3]) == pytest.approx(cell.paper[0], abs=1e-6)
    assert float(rows[1][6]) == pytest.approx(cell.exact[0], abs=1e-6)


def test_the_papers_figures_are_not_shown_beside_another_setting(capsys):
    main(["--init", "identity", "--hidden", "100", "--steps", "10", "--seeds", "1"])
    assert capsys.readouterr().out.splitlines()[-1].split()[2] == "-"


def test_bad_options_are_refused(capsys):
    with pytest.raises(SystemExit):
        main(["--steps", "2"])
    assert "--steps must be at least 3" in capsys.readouterr().err
    with pytest.raises(ValueError, match="init must be one of"):
        ratio_table(init="zeros")
