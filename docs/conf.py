"""The documentation as a site: `sphinx-build -W --keep-going -n -b html docs BUILD`."""

from __future__ import annotations

import tilewright

project = "Tilewright"
version = release = tilewright.__version__
extensions = ["myst_parser"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"Tilewright {release}"
myst_heading_anchors = 3
