"""The end of a process without a new process: at a commit, or wherever `Crash` is raised."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from django.core.cache import cache
from django.db import DEFAULT_DB_ALIAS, connection, connections

from django_semq.driver import tick
from django_semq.transport.base import transport_of


class Crash(BaseException):
    """No handler of errors sees it, as none sees a kill."""


def dies(work: Callable[[], object], *, after_commit: int | None = None) -> bool:
    """Do the work until it dies: where it raises `Crash`, or right after its n-th commit. False if it came through."""
    try:
        if after_commit is None:
            work()
        else:
            with _killed_after(after_commit):
                work()
    except Crash:
        forget()
        return True
    return False


def forget() -> None:
    """All that a process knows and the database does not, and all that it was about to do."""
    connection.close()
    cache.clear()
    tick._processes.clear()
    transport_of.cache_clear()


@contextmanager
def _killed_after(commits: int) -> Iterator[None]:
    backend = type(connections[DEFAULT_DB_ALIAS])
    commit = backend._commit
    left = commits

    def commit_and_die(self):
        nonlocal left
        commit(self)
        left -= 1
        if left == 0:
            raise Crash

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend, "_commit", commit_and_die)
        yield
