"""A fixed bound on steps: characters, absolute units.

Runs with the bound need code that is gone; those without one can be made again.
"""

from pathsgd_lab.studies.sweeps import sweep_study

STUDY = sweep_study(
    "step-control-absolute",
    "A fixed bound on steps: characters, absolute units",
    "ptb_char rnn_path path-adam --hidden 512 --epochs 1 --decay linear --eval-every 1567"
    " --growth-limit 0 --refresh-every 10 --grid lr=1e-2",
    duration="half an hour of one core",
    shown=("step_growth", "refresh_every"),
)
