"""Characters from larger initial weights."""

from pathsgd_lab.studies.sweeps import sweep_study

COMMON = "--decay linear --eval-every 1567 --others-range 0.1"
STUDY = sweep_study(
    "larger-start",
    "Characters of the Penn Treebank from larger initial weights",
    f"ptb_char lstm adam --hidden 256 --epochs 1 {COMMON} --grid lr=2e-2,1e-2,5e-3",
    f"ptb_char lstm adam --hidden 256 --epochs 8 {COMMON} --grid lr=1e-2",
    f"ptb_char rnn_relu adam --hidden 512 --epochs 8 {COMMON} --grid lr=5e-3",
    duration="half a day of one core",
)
