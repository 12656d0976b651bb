"""The documentation site: ``./mw docs`` builds it."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from generators.commands import manual_pages

import meshwright

project = "meshwright"
author = "The meshwright developers"
copyright = author
release = version = meshwright.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "numpydoc", "generators.extension"]
exclude_patterns = ["_build", "generators"]
nitpicky = True
nitpick_ignore_regex = [
    # Python, NumPy and pydantic: their inventories come from a network, which a build does without.
    ("py:.*", r"(numpy|np|pathlib|collections|typing|enum|datetime|argparse|pydantic|abc)\..*"),
]

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4
smartquotes = False
toc_object_entries = False
nb_execution_mode = "off"

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
numpydoc_show_class_members = False

html_theme = "furo"
html_title = "meshwright"
html_static_path = ["static"]
html_favicon = "static/icon.svg"
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_copy_source = False
html_use_index = False
html_show_copyright = False
html_show_sphinx = False
html_theme_options = {"footer_icons": []}

man_pages = manual_pages(author)
man_show_urls = False
