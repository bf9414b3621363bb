"""A fixed bound on steps: characters.

Runs with the bound need code that is gone; those without one can be made again.
"""

from pathsgd_lab.studies.sweeps import sweep_study

STUDY = sweep_study(
    "step-control-text",
    "A fixed bound on steps: characters",
    "ptb_char rnn_path path-adam-relative --hidden 256 --epochs 1 --decay linear"
    " --eval-every 500 --eval-limit 40 --growth-limit 0 --beta2 0.999 --refresh-every 10"
    " --grid lr=5e-3",
    "ptb_char rnn_relu adam --hidden 256 --epochs 1 --decay linear --eval-every 500"
    " --eval-limit 40 --grid lr=5e-3,2e-3",
    duration="twenty minutes of one core",
    shown=("step_growth",),
)
