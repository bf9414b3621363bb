"""The documentation: Markdown pages, notebooks that are run, all public names on the API page."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))
# Notebooks run in processes of their own; one of them imports the tests' oracle.
TESTS = str(Path(__file__).parents[1] / "tests")
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (TESTS, os.environ.get("PYTHONPATH"))))

import pathsgd

project = "pathsgd"
author = "the pathsgd maintainers"
version = release = pathsgd.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.viewcode",
    "outside_links",
    "plain_docstrings",
    "public_names",
]
exclude_patterns = ["_ext"]

myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 4
myst_url_schemes = ["http", "https", "mailto"]

nb_execution_mode = "cache"
nb_execution_cache_path = str(Path(__file__).parents[1] / "build" / "notebooks")
nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_merge_streams = True

autodoc_typehints = "signature"
autodoc_member_order = "bysource"
python_use_unqualified_type_names = True

html_theme = "furo"
html_title = f"pathsgd {release}"
html_show_sourcelink = False
html_copy_source = False
