"""Sphinx: MyST pages, furo, every reference inside must resolve."""

from __future__ import annotations

import tomllib
from pathlib import Path

_PROJECT = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]

project = _PROJECT["name"].capitalize()
release = version = _PROJECT["version"]
author = copyright = "The Outrider authors"

extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
nitpicky = True
suppress_warnings: list[str] = []

myst_enable_extensions = ["colon_fence", "deflist", "tasklist"]
myst_heading_anchors = 3
myst_url_schemes = ("http", "https", "mailto")

html_theme = "furo"
html_title = f"Outrider {release}"
html_show_sphinx = False
html_copy_source = False
