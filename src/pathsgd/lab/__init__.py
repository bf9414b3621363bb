"""The lab: every task and every system of the paper, trained, swept, recorded and reported.

The line from a spec to a page::

    RunSpec (spec.py) --train--> Record (record.py) --report--> tables, figures, pages
    specs/             one file per table or figure of the paper, each a list of RunSpecs for ``pathsgd reproduce``
"""

from importlib.metadata import version

__version__ = version("pathsgd")
