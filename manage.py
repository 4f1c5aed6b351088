#!/usr/bin/env python
"""Run Django's commands on the example project, or on DJANGO_SETTINGS_MODULE."""

import os
import sys


def main():
    # Said before Django is imported: a Django that needs a newer Python fails with a traceback instead.
    if sys.version_info < (3, 11):
        sys.exit("django_semq needs Python 3.11 or newer; this is %d.%d." % sys.version_info[:2])
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "example_project.settings")
    try:
        from django.core.management import execute_from_command_line
    except ImportError:
        sys.exit("Django is not installed for %s: run `make venv`, then .venv/bin/python." % sys.executable)
    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
