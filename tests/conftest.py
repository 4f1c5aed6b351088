from collections.abc import Callable, Iterator

import pytest
from django.conf import settings

from tests import processes


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what means nothing on this database; a skip always says that something is missing."""
    elsewhere = [item for item in items if not means_something_here(item)]
    if elsewhere:
        config.hook.pytest_deselected(items=elsewhere)
        items[:] = [item for item in items if item not in elsewhere]


def means_something_here(item: pytest.Item) -> bool:
    marker = item.get_closest_marker("databases")
    return marker is None or settings.DATABASE in marker.args


@pytest.fixture(scope="session", autouse=True)
def empty_tables_by_delete() -> Iterator[None]:
    """After a test with real transactions Django truncates every table. PostgreSQL makes new files for each, which
    takes longer than most tests; they hold a few rows, so DELETE does, in one transaction with deferred checks."""
    from django.db.backends.postgresql.operations import DatabaseOperations

    def sql_flush(self, style, tables, *, reset_sequences=False, allow_cascade=False):
        return [f"DELETE FROM {self.quote_name(table)};" for table in tables]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DatabaseOperations, "sql_flush", sql_flush)
        yield


@pytest.fixture
def spawn() -> Iterator[Callable[..., processes.Child]]:
    """`tests.processes.spawn`, which see; what is still running at the end of the test is ended."""
    started: list[processes.Child] = []

    def start(*args: object, **kwargs: object) -> processes.Child:
        started.append(processes.spawn(*args, **kwargs))
        return started[-1]

    yield start
    for child in started:
        child.clear_away()
