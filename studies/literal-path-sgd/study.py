"""The paper's rule without its constant, at rates from 1e-2 to 1e-6: the first trials."""

from pathsgd_lab.studies.sweeps import sweep_study

RULE = "adding rnn_path path-sgd --length 100 --steps 3000 --refresh-every 1 --rho 0"
LARGER = "--others-range 0.3 --mean-bias"
RATES = "--grid lr=1e-2,1e-3,1e-4,1e-5,1e-6 seed=0..2"
STUDY = sweep_study(
    "literal-path-sgd",
    "The paper's rule without its constant",
    f"{RULE} --clip 0 --growth-limit 0 {RATES}",
    f"{RULE} --clip 0 --growth-limit 0 {LARGER} {RATES}",
    f"{RULE} --clip 1 --growth-limit 0 {LARGER} --grid lr=1e-1,1e-2,1e-3 seed=0..2",
    duration="an hour of one core",
    shown=("mean_bias", "others_range", "clip", "step_growth", "momentum", "rho", "decay"),
)
