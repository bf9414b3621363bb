"""Sequential MNIST with the bound on growth rates."""

from pathsgd_lab.studies.sweeps import sweep_study

STUDY = sweep_study(
    "growth-digits",
    "Sequential MNIST with the bound on growth rates",
    "smnist rnn_path path-adam-relative --others-range 0.3 --beta2 0.999 --decay linear"
    " --epochs 20 --eval-every 1719 --batch-size 32 --refresh-every 10 --grid lr=1.5e-4",
    duration="two hours of one core",
)
