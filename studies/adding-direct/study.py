"""Sequences of full length from the first step, with a fixed bound on steps and with Adam.

The runs of PathAdam need code that is gone; those of Adam can be made again.
"""

from pathsgd_lab.studies.sweeps import sweep_study

ADAM = (
    "adding rnn_path adam --steps 40000 --decay linear --eval-every 500 --stop-when-solved"
    " --others-range 0.3 --mean-bias --grid length=400,750 lr=1e-3,3e-4,1e-4,3e-5,1e-5"
)
STUDY = sweep_study(
    "adding-direct",
    "The adding problem at full length from the start",
    ADAM,
    duration="an hour of one core",
    shown=("length", "mean_bias", "others_range", "step_growth", "steps"),
)
