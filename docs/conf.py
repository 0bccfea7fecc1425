"""How Sphinx builds the site from these pages: ``make docs`` writes it to ``build/site``.

The pages are Markdown that GitHub shows as well. What the code knows (recipe fields, records, the Python interface, the
import graph) is read from the code while the site is built; the directives for it stand in ``docs/extension``.
"""

from __future__ import annotations

import os
import sys
from importlib import metadata
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "torch")  # rueda.keras is described; Keras would want TensorFlow
DOCS = Path(__file__).parent
sys.path[:0] = [str(DOCS), str(DOCS.parent / "tests")]  # for extension/ and house.py

project = "Rueda"
author = "The Rueda authors"
project_copyright = "The Rueda authors. Apache-2.0"
release = version = metadata.version("rueda")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "extension"]
exclude_patterns = ["extension", "static", "results/*/*.json*"]
default_role = "code"
highlight_language = "none"
nitpicky = True
nitpick_ignore_regex = [("py:.*", r"(?!rueda\b).*")]  # other packages' names; docstrings.py looks at our own

myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence", "deflist"]

smartquotes_action = "qe"  # quotation marks and ellipses, but no dashes: --set stays --set
napoleon_numpy_docstring = False  # the docstrings are Google's; two passes would split "a: b" twice

autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 88
python_use_unqualified_type_names = True
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = "Rueda"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True, "source_edit_link": "", "source_view_link": ""}
