"""The application that the tests queue for: its functions note what they get, and do what a test tells them to.

At the end of every test that installs it, two things must hold: none of its functions was called while a
transaction was open, and every counter says what the rows say.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypeVar

import pytest
from django.apps import apps
from django.db import connection, connections, transaction
from django.dispatch import Signal

from django_semq import clock, handlers, signals
from django_semq.driver.tick import tick
from django_semq.invariants import audit
from django_semq.models import Item
from django_semq.queue.admission import AdmittedItem

T = TypeVar("T")
MODULE = __name__


@dataclass
class Event:
    """A signal as a receiver got it."""

    name: str
    fields: dict[str, Any]

    def __getattr__(self, name: str) -> Any:
        try:
            return self.fields[name]
        except KeyError:
            raise AttributeError(name) from None


@dataclass
class Application:
    """Its functions are `admit`, `finished`, `retry_delay` and `limits` of this module."""

    settings: Any
    batches: list[list[AdmittedItem]] = field(default_factory=list)
    """What each call of admit() got."""
    asked: list[list[str]] = field(default_factory=list)
    """What each call of finished() got."""
    limits_asked: list[str] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    called_in_transaction: list[str] = field(default_factory=list)
    counters_agree: bool = True
    """A test that breaks rows behind the library's back says that they will not."""
    on_admit: Callable[[list[AdmittedItem]], object] = lambda items: None
    on_finished: Callable[[list[str]], object] = lambda ids: None
    on_retry_delay: Callable[[int], object] = lambda attempt: 60
    on_limits: Callable[[str], object] = lambda key: None
    on_event: Callable[[Event], object] = lambda event: None
    ahead: timedelta = timedelta(0)
    """How far `clock.now()` is before the real time."""

    def configure(
        self,
        queue: dict[str, Any] | None = None,
        *,
        queues: Sequence[str] = ("default",),
        holder: dict[str, Any] | None = None,
        driver: dict[str, Any] | None = None,
    ) -> None:
        """Set SEMQ: every queue hands over to `admit`, and has these settings besides."""
        entry = {"ADMIT": f"{MODULE}.admit", **(queue or {})}
        self.settings.SEMQ = {
            "QUEUES": {alias: dict(entry) for alias in queues},
            "HOLDER": holder or {},
            "DRIVER": {"WAKE": False, **(driver or {})},
        }

    def tick(self) -> datetime | None:
        """One run of the driver, which calls the application in this thread."""
        return tick(threads=0)

    def pass_time(self, *, seconds: float = 0, **more: float) -> None:
        self.ahead += timedelta(seconds=seconds, **more)

    @property
    def admitted(self) -> list[str]:
        """Ids in the order in which admit() got them."""
        return [item.id for batch in self.batches for item in batch]

    def events_of(self, name: str) -> list[Event]:
        return [event for event in self.events if event.name == name]

    def watch(self, function: str) -> None:
        if connection.in_atomic_block:
            self.called_in_transaction.append(function)


_installed: list[Application] = []


@pytest.fixture
def transactional_db(django_db_setup, django_db_blocker) -> Iterator[None]:
    """Real commits, as in pytest-django's fixture of this name. The tables are emptied by deleting rows: to flush
    them as Django does, and to send `post_migrate` for each test, takes ten times as long as most tests here."""
    with django_db_blocker.unblock():
        yield
        with connection.constraint_checks_disabled(), transaction.atomic():
            for model in apps.get_app_config("django_semq").get_models():
                model._default_manager.all()._raw_delete(connection.alias)


@pytest.fixture
def app(settings, transactional_db, monkeypatch) -> Iterator[Application]:
    """The application of one test, configured and with the clock in its hands."""
    app = Application(settings)
    app.configure()
    monkeypatch.setattr(handlers, "_hung_until", {})
    monkeypatch.setattr(handlers, "_quiet_until", {})  # Every test hears the first complaint of each kind.
    now = clock.now
    monkeypatch.setattr(clock, "now", lambda: now() + app.ahead)
    receivers = {signal: _receiver(app, name) for name, signal in SIGNALS.items()}
    for signal, receiver in receivers.items():
        signal.connect(receiver, sender=Item, weak=False)
    _installed.append(app)
    yield app
    _installed.remove(app)
    for signal, receiver in receivers.items():
        signal.disconnect(receiver, sender=Item)
    assert app.called_in_transaction == []
    assert not app.counters_agree or audit() == []


SIGNALS: dict[str, Signal] = {
    name: getattr(signals, f"item_{name}") for name in ("queued", "blocked", "admitted", "released", "cancelled")
}


def _receiver(app: Application, name: str) -> Callable[..., None]:
    def receive(sender: type[Item], signal: Signal, **fields: Any) -> None:
        app.watch(f"receiver of {name}")
        app.events.append(Event(name, fields))
        app.on_event(app.events[-1])

    return receive


def admit(items: list[AdmittedItem]) -> None:
    (app,) = _installed
    app.watch("admit")
    app.batches.append(list(items))
    app.on_admit(items)


def finished(ids: list[str]) -> object:
    (app,) = _installed
    app.watch("finished")
    app.asked.append(list(ids))
    return app.on_finished(ids)


def retry_delay(attempt: int) -> object:
    (app,) = _installed
    app.watch("retry_delay")
    return app.on_retry_delay(attempt)


def limits(key: str) -> object:
    (app,) = _installed
    app.watch("limits")
    app.limits_asked.append(key)
    return app.on_limits(key)


def raising(error: BaseException) -> Callable[..., None]:
    """A function that raises this."""

    def fail(*args: object) -> None:
        raise error

    return fail


def in_thread(work: Callable[[], T]) -> T:
    """The work's result from a thread of its own, and so from another connection."""

    def do() -> T:
        try:
            return work()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(do).result()


@contextmanager
def rolled_back() -> Iterator[None]:
    """A caller's transaction that ends in an error of the caller."""
    with suppress(_Undo), transaction.atomic():
        yield
        raise _Undo


class _Undo(Exception):
    pass


def values_of(params: Iterable[object]) -> list[object]:
    """All values of a statement: some databases take a list of them as one."""
    return [inner for value in params for inner in (value if isinstance(value, (list, tuple)) else [value])]
