"""The paper's tables and figures, one file each: which runs they need, and how their records become tables again.

    EXPERIMENTS[name].stages   lists of cells, a later stage chosen by the records of the earlier ones
    EXPERIMENTS[name].section  records -> tables and figures of the report

A new table is one new file and one line in ``EXPERIMENTS``.
"""

from pathsgd.lab.specs.adding import ADDING
from pathsgd.lab.specs.base import Experiment, Scale
from pathsgd.lab.specs.cost import COST
from pathsgd.lab.specs.kappa_ratios import KAPPA_RATIOS
from pathsgd.lab.specs.ptb_char import PTB_CHAR
from pathsgd.lab.specs.ptb_word import PTB_WORD
from pathsgd.lab.specs.smnist import SMNIST
from pathsgd.lab.specs.text8 import TEXT8

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment for experiment in (KAPPA_RATIOS, PTB_WORD, ADDING, SMNIST, PTB_CHAR, TEXT8, COST)
}

__all__ = ["EXPERIMENTS", "Experiment", "Scale"]
