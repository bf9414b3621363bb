"""Studies: found in a folder, loaded, run stage by stage, and shown.

A study is a folder with ``study.py`` (what is run: ``STUDY``), the table of its runs and a page.
The studies themselves are no part of this package: they lie in ``studies/`` of the repository.
"""

from pathsgd_lab.studies.find import Studies, studies_folder
from pathsgd_lab.studies.study import Scale, Study

__all__ = ["Scale", "Studies", "Study", "studies_folder"]
