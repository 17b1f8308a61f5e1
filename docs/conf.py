"""The documentation as a site: `sphinx-build -W --keep-going -n -b html docs BUILD`."""

from __future__ import annotations

import sys
from pathlib import Path

import tilewright

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import api_pages  # noqa: E402  the modules of this folder are found by now
import make_pictures  # noqa: E402
import make_plots  # noqa: E402

project = "Tilewright"
version = release = tilewright.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "docstrings"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"Tilewright {release}"
myst_heading_anchors = 3
smartquotes = False

autodoc_preserve_defaults = True
napoleon_use_ivar = True

# Names are documented as users write them.
sys.modules["tw"] = tilewright
sys.modules |= {f"tw.{name}": getattr(tilewright, name) for name in api_pages.NAMESPACES}

api_pages.write(HERE / "reference" / "api")
make_pictures.write(HERE / "_static")
make_plots.write(HERE / "_static")
