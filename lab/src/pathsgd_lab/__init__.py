"""The lab: every task and every system of the paper, trained, swept, recorded and reported.

The line from settings to a page, one room after the other::

    tasks, systems    what is learnt, and by which net
    run               RunSpec --train--> Record
    sweep             many runs in parallel, each once, a folder of records
    report            records --> tables, figures, pages
    studies           finds, loads and runs the studies of the repository, and shows them
    commands          what ``pathsgd COMMAND`` does
"""

from importlib.metadata import version

__version__ = version("pathsgd")
