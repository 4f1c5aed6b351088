"""How Sphinx builds these pages: `make docs`."""

import tomllib
from dataclasses import is_dataclass
from pathlib import Path

import django
from django.conf import settings

ROOT = Path(__file__).resolve().parent.parent
pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())

# The reference is made from the docstrings, and models can only be imported by a project.
settings.configure(INSTALLED_APPS=["django_semq"])
django.setup()

project = "django_semq"
author = "the django_semq authors"
copyright = "2026, the django_semq authors"
release = version = pyproject["project"]["version"]

extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]
nitpicky = True
# What Python and Django document themselves: the build needs no network.
nitpick_ignore_regex = [("py:class", r"Any|datetime|(collections\.abc|datetime|django)\..*")]

# Docstrings quote code as the rest of the project does, in single backticks.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True

# colon_fence: notes that read well as plain text. deflist: the glossary. Anchors: links to headings.
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = f"django_semq {release}"


def setup(app):
    app.connect("autodoc-process-signature", only_fields)


def only_fields(app, what, name, documented, options, signature, returns):
    """Nobody but the library makes these values: show what is in them, and not how to make one."""
    return ("", None) if is_dataclass(documented) else None
