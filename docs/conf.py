"""How the site is built: `make docs`, or `sphinx-build -W --keep-going -n docs build/docs`."""

from __future__ import annotations

import sys
from pathlib import Path

from pytest_mlperf import __version__

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "pytest-mlperf"
author = "the authors of pytest-mlperf"
copyright = f"{author}; Apache-2.0"  # noqa: A001 - Sphinx's name
release = __version__

extensions = ["myst_parser", "mlperf_reference"]
exclude_patterns = ["_ext"]
nitpicky = True
# Quotes stand around words that are typed as they are.
smartquotes = False
# Terminal output and suite files are shown as they are; a lexer would mark their signs as errors.
highlight_language = "text"

myst_enable_extensions = ["attrs_inline", "deflist"]
myst_heading_anchors = 4
# Anchors are those of GitHub, where the same pages are read.
myst_links_external_new_tab = False

html_theme = "furo"
html_title = f"pytest-mlperf {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
