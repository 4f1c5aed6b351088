"""How Sphinx builds these pages: `make docs`."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())

project = "django_semq"
author = "the django_semq authors"
copyright = "2026, the django_semq authors"
release = version = pyproject["project"]["version"]

extensions = ["myst_parser"]
exclude_patterns = ["_build"]
nitpicky = True

# colon_fence: notes that read well as plain text. deflist: the glossary. Anchors: links to headings.
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = f"django_semq {release}"
