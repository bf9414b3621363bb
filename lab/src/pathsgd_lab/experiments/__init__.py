"""The paper's tables and figures, one file each: which runs they need, and how their records become tables again.

    EXPERIMENTS[name].stages   lists of cells, a later stage chosen by the records of the earlier ones
    EXPERIMENTS[name].section  records -> tables and figures of the report

A new table is one new file and one line in ``EXPERIMENTS``.
"""

from pathsgd_lab.experiments.adding import ADDING
from pathsgd_lab.experiments.base import Experiment, Scale
from pathsgd_lab.experiments.compare import COMPARE
from pathsgd_lab.experiments.cost import COST
from pathsgd_lab.experiments.growth import GROWTH
from pathsgd_lab.experiments.ingredients import INGREDIENTS_AT_LENGTH
from pathsgd_lab.experiments.kappa_ratios import KAPPA_RATIOS
from pathsgd_lab.experiments.paper_rule import PAPER_RULE
from pathsgd_lab.experiments.ptb_char import PTB_CHAR
from pathsgd_lab.experiments.ptb_word import PTB_WORD
from pathsgd_lab.experiments.smnist import SMNIST
from pathsgd_lab.experiments.text8 import TEXT8

_ALL = (
    KAPPA_RATIOS, PTB_WORD, PAPER_RULE, ADDING, SMNIST, PTB_CHAR, TEXT8, GROWTH, COST, COMPARE, INGREDIENTS_AT_LENGTH,
)  # fmt: skip
EXPERIMENTS: dict[str, Experiment] = {experiment.name: experiment for experiment in _ALL}

__all__ = ["EXPERIMENTS", "Experiment", "Scale"]
