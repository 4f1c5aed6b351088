"""The loop of `semq_run`, pass by pass: when it waits, for how long, and how it ends."""

import signal
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
from django.db import connection, connections
from django.db.backends.signals import connection_created

from django_semq import clock
from django_semq.driver import daemon as module
from django_semq.driver import tick
from django_semq.driver.crew import MAX_HUNG, Call
from django_semq.driver.daemon import Daemon
from django_semq.signals import driver_wanted

pytestmark = pytest.mark.django_db(transaction=True)


class Wakeup:
    """Notes what is asked of it, and never waits."""

    def __init__(self) -> None:
        self.asked: list[object] = []

    def set(self) -> None:
        self.asked.append("set")

    def wait(self, seconds: float, also: object = ()) -> None:
        self.asked.append(seconds)


@pytest.fixture
def daemon(settings, monkeypatch) -> Iterator[Daemon]:
    """A daemon that has found nothing to do yet, and whose next poll is far away."""
    settings.SEMQ = {"DRIVER": {"POLL_INTERVAL": 600}}
    monkeypatch.setattr(tick, "_processes", {})
    monkeypatch.setitem(connections.settings["default"], "CONN_MAX_AGE", None)  # It changes this for its process.
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    daemon = Daemon()
    daemon.work.wakeup = Wakeup()
    daemon.listener = module.Listener(on_listening=daemon.work.wakeup.set)
    yield daemon
    daemon.listener.close()
    for number, handler in handlers.items():
        signal.signal(number, handler)
    connection_created.disconnect(dispatch_uid="django_semq.driver.daemon")
    driver_wanted.disconnect(dispatch_uid="django_semq.driver.daemon")


def passes(daemon: Daemon, *found: bool | Callable[[], bool]) -> None:
    """Let each pass find work or not; after the last one a signal comes."""
    todo = list(found)

    def advance(now: object, *, takes_new: bool = True) -> bool:
        one = todo.pop(0)
        if not todo:
            daemon.stops = 1
        return one() if callable(one) else one

    daemon.work.advance = advance


def waits(daemon: Daemon) -> list[float]:
    return [asked for asked in daemon.work.wakeup.asked if asked != "set"]


def test_it_does_not_wait_while_passes_find_work(daemon):
    passes(daemon, True, True, True)
    assert daemon.run() == 0
    assert waits(daemon) == []


@pytest.mark.databases("sqlite", "mariadb")
def test_where_nothing_is_announced_it_looks_often_for_a_while_after_work(daemon, monkeypatch):
    ahead = 0.0
    now = clock.monotonic
    monkeypatch.setattr(clock, "monotonic", lambda: now() + ahead)

    def later() -> bool:
        nonlocal ahead
        ahead += module.BUSY_FOR
        return False

    passes(daemon, True, False, later, False)
    daemon.run()
    assert waits(daemon) == [module.BUSY_POLL, 600]


@pytest.mark.databases("postgres")
def test_it_looks_once_more_after_it_has_begun_to_listen(daemon):
    """What was announced between the last look and LISTEN was announced to nobody."""
    passes(daemon, False, False)
    daemon.run()
    assert daemon.work.wakeup.asked == ["set", 600]


@pytest.mark.databases("postgres")
def test_a_call_that_is_past_its_time_is_not_left_until_the_next_poll(daemon):
    crew = daemon.work.crew
    late = Call(lambda: None, timedelta(seconds=1), None, started_at=clock.monotonic() - 2)

    def end() -> bool:
        crew.running.remove(late)
        return False

    crew.running.append(late)
    passes(daemon, False, end)
    daemon.run()
    assert waits(daemon)[0] < 1


def test_a_process_in_which_too_many_calls_hang_ends_for_its_supervisor(daemon):
    daemon.work.crew.hung = [object()] * MAX_HUNG
    assert not daemon.work.crew.is_worn_out
    daemon.work.crew.hung.append(object())
    passes(daemon, False, False)

    assert daemon.run() == 75


@pytest.mark.databases("mariadb")
def test_a_connection_that_was_open_before_bounds_frozen_transactions_too(daemon, monkeypatch):
    monkeypatch.setitem(connection.settings_dict, "CONN_MAX_AGE", None)  # Django closes it at once otherwise.
    connection.close()
    connection.ensure_connection()
    passes(daemon, False)
    daemon.run()

    with connection.cursor() as cursor:
        cursor.execute("SELECT @@SESSION.idle_write_transaction_timeout")
        assert cursor.fetchone() == (10,)
