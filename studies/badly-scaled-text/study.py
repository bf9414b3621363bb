"""Characters from badly scaled units: Adam, and PathAdam with a fixed bound on steps.

The run of PathAdam needs code that is gone; those of Adam can be made again.
"""

from pathsgd_lab.studies.sweeps import sweep_study

ADAM = (
    "ptb_char rnn_path adam --hidden 512 --epochs 1 --decay linear --eval-every 1567"
    " --grid lr=1e-2,5e-3,2e-3,1e-3,1e-4,1e-5 unbalanced=100"
)
STUDY = sweep_study(
    "badly-scaled-text",
    "Characters of the Penn Treebank from badly scaled units",
    ADAM,
    duration="two hours of one core",
)
