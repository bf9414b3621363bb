"""The norm stabiliser at several weights."""

from pathsgd_lab.studies.sweeps import sweep_study

COMMON = "--hidden 512 --epochs 1 --decay linear --eval-every 1567"
STUDY = sweep_study(
    "norm-stabiliser",
    "The norm stabiliser on characters of the Penn Treebank",
    f"ptb_char norm_stabilizer adam {COMMON} --recurrent paper --grid beta=5,0.5,0.05 lr=5e-3,2e-3",
    f"ptb_char norm_stabilizer adam {COMMON} --grid beta=500 lr=5e-3,2e-3,1e-3",
    duration="three hours of one core",
)
