"""`python -m example_project`: all of the example at once, see `launcher`."""

import sys

# Said before anything is imported: a Django that needs a newer Python fails with a traceback instead.
if sys.version_info < (3, 11):  # noqa: UP036 - it starts on an old Python too, to say that it is too old.
    sys.exit("django_semq needs Python 3.11 or newer; this is %d.%d." % sys.version_info[:2])  # noqa: UP031 - as above.
try:
    import django  # noqa: F401 - the launcher needs it.
except ImportError:
    sys.exit("Django is not installed for %s: start the example with `make run`." % sys.executable)  # noqa: UP031

from example_project.launcher import main

sys.exit(main())
