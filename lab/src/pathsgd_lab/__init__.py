"""The lab: every task and every system of the paper, trained, swept, recorded and reported.

The line from settings to a page, one room after the other::

    tasks, systems    what is learnt, and by which net
    run               RunSpec --train--> Record
    sweep             many runs in parallel, each once, a folder of records
    report            records --> tables, figures, pages
    experiments       one file per table or figure of the paper: its runs, and its part of a report
    commands          what ``pathsgd COMMAND`` does
"""

from importlib.metadata import version

__version__ = version("pathsgd")
