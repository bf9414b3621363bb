"""PathAdam and Adam, each at its own defaults, from a balanced and a badly scaled start."""

from pathsgd_lab.studies.sweeps import sweep_study

COMMON = (
    "--length 100 --steps 3000 --others-range 0.3 --mean-bias --decay linear"
    " --grid unbalanced=1,100 seed=0..4"
)
STUDY = sweep_study(
    "adding-100-default",
    "Defaults on the adding problem at T = 100, balanced and badly scaled",
    f"adding rnn_path path-adam --lr 3e-3 --refresh-every 1 {COMMON}",
    f"adding rnn_relu adam --lr 1e-3 {COMMON}",
    duration="twenty minutes of one core",
)
