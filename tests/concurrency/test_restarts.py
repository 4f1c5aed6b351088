"""The database server goes and comes back under load: everybody goes on by themselves, and nothing is lost."""

import signal
from collections import Counter
from collections.abc import Iterator

import pytest
from django.conf import settings
from django.core.management import call_command
from django.db import connection

from tests import databases
from tests.concurrency import loaded
from tests.concurrency.crowd import Crowd, over_the_limit, wait_for_the_end
from tests.concurrency.observer import Observer
from tests.concurrency.servers import address_of, alive_until
from tests.concurrency.states import wait_until

pytestmark = [
    pytest.mark.processes,
    pytest.mark.databases("postgres", "mariadb"),  # SQLite has no server.
    pytest.mark.django_db(transaction=True),
]

PROGRESS = 25
"""Items that are done in each life of the server."""
PATIENCE = 60


@pytest.fixture
def server(transactional_db, monkeypatch) -> Iterator[databases.Installed]:
    """Ours alone. This process and all that it starts use it, once it is alive."""
    variable, *_others, installed = databases.SERVERS[settings.DATABASE]
    try:
        with installed() as server:
            connection.close()
            monkeypatch.delenv("PGOPTIONS", raising=False)  # A commit that was answered has to outlive this server.
            for name, value in address_of(server).items():
                monkeypatch.setitem(connection.settings_dict, name, value)
            monkeypatch.setenv(variable, server.url)
            yield server
            connection.close()
    except databases.Missing as reason:
        pytest.skip(f"no server of our own: {reason}")


def test_a_server_that_is_stopped_or_killed_loses_nothing(server, application, crowd, spawn, observer):
    with alive_until(server, server.stop_signal):
        make_database()
        crowd.add({"driver": 2, "worker": 2, "caller": 2})
        wait_for_progress(crowd, observer)
    for end in loaded(1) * [signal.SIGKILL, server.stop_signal, signal.SIGKILL]:
        with alive_until(server, end):
            wait_for_progress(crowd, observer)
    with alive_until(server, server.stop_signal):
        connection.close()
        wait_for_progress(crowd, observer)
        said = crowd.stop("caller")
        wait_for_the_end()
        said += crowd.stop("worker")
        crowd.stop("driver")
        assert spawn("django", "semq_doctor").finish() == ["all counters are right"]

    errors = [line for line in said if line.startswith("again after")]
    print(f"{len(observer.items('end'))} items, {len(errors)} calls done again")
    assert errors, "no call met a server that was gone"
    for what in ("queued", "end"):
        assert Counter(observer.items(what)) == Counter(observer.items("enqueuing")), what
    assert over_the_limit(observer.events()) == []


def make_database() -> None:
    with connection._nodb_cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {connection.ops.quote_name(settings.TEST_NAME)}")
    call_command("migrate", verbosity=0)


def wait_for_progress(crowd: Crowd, observer: Observer) -> None:
    """Items are done, and all processes are those of the beginning."""
    done = len(observer.items("released"))

    def is_on() -> bool:
        dead = [child.lines for children in crowd.alive.values() for child in children if child.poll() is not None]
        assert dead == []
        return len(observer.items("released")) >= done + PROGRESS

    took = wait_until(is_on, PATIENCE, f"{PROGRESS} items are done")
    print(f"{PROGRESS} items after {took:.1f} s")
