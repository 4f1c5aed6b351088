from collections.abc import Iterator

import pytest

from tests.queue import application


@pytest.fixture
def app(settings, django_db_setup, django_db_blocker) -> Iterator[application.Application]:
    with application.installed(settings, django_db_blocker) as app:
        yield app
