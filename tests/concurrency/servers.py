"""A database server of a test's own, which it may stop and kill."""

import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from urllib.parse import urlsplit

from tests import databases

STARTS = 30
"""Seconds in which the processes that a killed server leaves behind have seen that it is gone."""


def address_of(server: databases.Installed) -> dict[str, str]:
    """As Django's settings have it."""
    at = urlsplit(server.url)
    return {"HOST": at.hostname, "PORT": str(at.port), "USER": at.username, "PASSWORD": ""}


@contextmanager
def alive_until(server: databases.Installed, end: signal.Signals) -> Iterator[None]:
    """One life of the server; what it keeps is what the lives before have left."""
    deadline = time.monotonic() + STARTS
    with ExitStack() as stack:
        while True:
            try:
                stack.enter_context(server.running(end))
                break
            except databases.Missing:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
        yield
