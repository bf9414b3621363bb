"""A fixed bound on steps: the adding problem.

Runs with the bound need code that is gone; those without one can be made again.
"""

from pathsgd_lab.studies.sweeps import sweep_study

STUDY = sweep_study(
    "step-control",
    "A fixed bound on steps: the adding problem",
    "adding rnn_path path-adam-relative --length 100 --steps 3000 --others-range 0.3 --mean-bias"
    " --decay linear --growth-limit 0 --beta2 0.999 --refresh-every 10"
    " --grid lr=1e-3,3e-3 seed=0..2",
    duration="ten minutes of one core",
    shown=("step_growth",),
)
