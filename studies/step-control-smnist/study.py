"""A fixed bound on steps: sequential MNIST.

Runs with the bound need code that is gone; those without one can be made again.
"""

from pathsgd_lab.studies.sweeps import sweep_study

STUDY = sweep_study(
    "step-control-smnist",
    "A fixed bound on steps: sequential MNIST",
    "smnist rnn_path path-adam-relative --batch-size 32 --steps 2500 --eval-every 500"
    " --others-range 0.3 --growth-limit 0 --refresh-every 10 --grid lr=5e-4",
    duration="half an hour of one core",
    shown=("step_growth",),
)
