"""PathAdam with a fixed bound on steps beside Adam, balanced and badly scaled.

The runs of PathAdam need code that is gone; those of Adam can be made again.
"""

from pathsgd_lab.studies.sweeps import sweep_study

ADAM = (
    "adding rnn_relu adam --length 100 --steps 3000 --others-range 0.3 --mean-bias --decay linear"
    " --explode 1e30 --grid lr=1e-3 unbalanced=1,100 seed=0..4"
)
STUDY = sweep_study(
    "adding-100",
    "The adding problem at T = 100, balanced and badly scaled",
    ADAM,
    duration="ten minutes of one core",
)
