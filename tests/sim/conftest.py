from collections.abc import Iterator

import pytest

from tests.sim import projects


@pytest.fixture(scope="session")
def projects_databases(django_db_blocker) -> Iterator[None]:
    with django_db_blocker.unblock(), projects.databases():
        yield


@pytest.fixture
def sim(projects_databases, django_db_blocker) -> Iterator[None]:
    """The databases of the simulated projects, open for this test."""
    with django_db_blocker.unblock():
        yield
