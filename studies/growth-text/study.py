"""Characters with the bound on growth rates."""

from pathsgd_lab.studies.sweeps import sweep_study

STUDY = sweep_study(
    "growth-text",
    "Characters of the Penn Treebank with the bound on growth rates",
    "ptb_char rnn_path path-adam --hidden 512 --epochs 1 --decay linear --eval-every 1567"
    " --refresh-every 10 --grid lr=1e-2,5e-3",
    duration="half an hour of one core",
)
