"""Where the world stands between the library and what it runs on: the database, its locks, clocks and chance.

Nothing here changes what the library does. It decides when others come in between, what is taken, when a process
dies or a statement fails, and it gives the time.
"""

from __future__ import annotations

import logging
import random
import re
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

from django.db import connections, transaction

from django_semq import clock, handlers, locking, signals
from django_semq.driver import tick
from django_semq.models import Item, Key, Semaphore
from django_semq.queue import items, pump
from django_semq.transport.local import LocalTransport
from tests.sim.boundaries import AFTER, BEFORE, place_of
from tests.sim.faults import Crash, passing_error
from tests.sim.invariants import OURS, Broken
from tests.sim.projects import ALIASES
from tests.sim.router import turn

if TYPE_CHECKING:
    from tests.sim.world import Node, World

SAVEPOINTS = ("SAVEPOINT", "RELEASE", "ROLLBACK")
EXPECTED = (
    r"is set aside$",
    r"LIMITS failed for key",
    r"finished\(\) (failed|said|named)",
    r"RETRY_DELAY said",
)
"""What the library may complain of in this world, where applications misbehave and rows are spoiled."""


_run, _join, _pump = locking.run, locking.join, pump.pump
_lock_keys, _lock_semaphores = locking.lock_keys, locking.lock_semaphores
_lock_due, _lock_by_id, _oldest_ids = locking.lock_due, locking.lock_by_id, locking.oldest_ids


class Seams:
    def __init__(self, world: World) -> None:
        self.world = world
        self.reads = 0
        """Of monotonic clocks: each takes a moment."""

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Inside, the library meets the world and nothing else."""
        chance = random.Random(self.world.faults.rng.random())
        ids = SimpleNamespace(UUID=uuid.UUID, uuid4=lambda: uuid.UUID(int=chance.getrandbits(128)))
        with ExitStack() as stack:
            enter = stack.enter_context
            for alias in ALIASES:
                enter(connections[alias].execute_wrapper(self.statement))
            enter(mock.patch.object(clock, "now", self.now))
            enter(mock.patch.object(clock, "monotonic", self.monotonic))
            enter(mock.patch.object(clock, "pause"))
            enter(everywhere(random, chance))
            enter(everywhere(uuid, ids))
            for name, value in self.world.faults.sizes.items():
                for module in (pump, tick):
                    if hasattr(module, name):
                        enter(mock.patch.object(module, name, value))
            for replace in (self.run, self.join, self.lock_keys, self.lock_semaphores, self.lock_due, self.lock_by_id):
                enter(everywhere(getattr(locking, replace.__name__), replace))
            enter(everywhere(locking.oldest_ids, self.oldest_ids))
            enter(everywhere(pump.pump, self.pump))
            enter(mock.patch.object(LocalTransport, "conversation", self.conversation(LocalTransport.conversation)))
            enter(mock.patch.object(items.Queue, "_known", self.known(items.Queue._known)))
            enter(mock.patch.object(items._Pump, "_waiting", None))
            # In a thread of its own it would not be the node that asks.
            enter(everywhere(handlers.answer, lambda path, setting, *given: handlers.resolve(path, setting)(*given)))
            enter(mock.patch.object(handlers, "_quiet_until", {}))
            enter(heard(signals.driver_wanted, lambda queue, **_: self.world.watcher.excuse(turn.get().alias)))
            for what in ("queued", "admitted", "released", "cancelled"):
                enter(heard(getattr(signals, f"item_{what}"), self.event(what)))
            enter(logged(self.log))
            yield

    def run(self, work: Callable[[], Any], *, using: str, **how: Any) -> Any:
        return self.crossing(place_of(sys._getframe(1)), _run, work, using, **how)

    def join(self, work: Callable[[], Any], *, using: str) -> Any:
        place = place_of(sys._getframe(1))
        if connections[using].atomic_blocks[-1]._from_testcase:  # Ours: the caller has no transaction.
            return self.crossing(place, _run, work, using)
        return self.crossing(place, _join, work, using)

    def crossing(self, place: str, do: Callable[..., Any], work: Callable[[], Any], using: str, **how: Any) -> Any:
        """A transaction, with the points before and after its commit; others may act before its locks are gone."""
        node = turn.get()
        if node.is_dead:
            raise Crash(place)

        def to_its_end() -> Any:
            node.locked, node.has_semaphores = [], False
            result = work()
            self.world.cross(place, BEFORE)
            return result

        result = do(to_its_end, using=using, **how)
        if not connections[using].atomic_blocks[-1]._from_testcase:
            return result
        self.world.collect_hooks(node)
        if node.locked and self.world.faults.happens("keep"):
            self.keep(node, node.locked)
        self.world.cross(place, AFTER)
        return result

    def keep(self, node: Node, held: Sequence[tuple[str, str]]) -> None:
        """Others act while the node's transaction, which is as good as over or has not begun, has these keys."""
        keys = {(node.alias, *key): node for key in held}
        self.world.keys_held |= keys
        self.world.meanwhile(node, f"while it has {', '.join(key for _queue, key in held)}")
        for key in keys:
            self.world.keys_held.pop(key, None)

    def pump(self, queue: str, names: Iterable[str], **how: Any) -> Any:
        node, names = turn.get(), list(names)
        if self.world.faults.happens("take early"):
            free = [(queue, name) for name in names if (node.alias, queue, name) not in self.world.keys_held]
            self.keep(node, free)
        return _pump(queue, names, **how)

    def lock_keys(self, queue: str, names: Sequence[str], **how: Any) -> list[Key]:
        node = turn.get()
        if node.has_semaphores:
            self.world.broken("I11", "keys are locked after semaphores")
        free = [name for name in names if self.world.keys_held.get((node.alias, queue, name), node) is node]
        self.world.left += len(names) - len(free)
        rows = _lock_keys(queue, free, **how) if free else []
        node.locked += [(queue, row.name) for row in rows]
        return rows

    def lock_semaphores(self, *args: Any, **kwargs: Any) -> list[Semaphore]:
        turn.get().has_semaphores = True
        return _lock_semaphores(*args, **kwargs)

    def lock_due(self, *args: Any, **kwargs: Any) -> list[Item]:
        return [item for item in _lock_due(*args, **kwargs) if not self.is_held(item.pk)]

    def lock_by_id(self, model: Any, *args: Any, skip_locked: bool = False, **kwargs: Any) -> list[Any]:
        rows = _lock_by_id(model, *args, skip_locked=skip_locked, **kwargs)
        return [row for row in rows if not (skip_locked and self.is_held(row.pk))]

    def oldest_ids(self, *args: Any, **kwargs: Any) -> list[tuple[int, int]]:
        return [(want, row) for want, row in _oldest_ids(*args, **kwargs) if not self.is_held(row)]

    def is_held(self, row: int) -> bool:
        return (turn.get().alias, row) in self.world.rows_held

    def statement(self, execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        """Around each statement: count what writes, and let one fail now and then."""
        if OURS in sql or not self.world.acting:
            return execute(sql, params, many, context)
        is_read = sql.startswith(("SELECT", "WITH"))
        self.world.writes += sql.startswith(("INSERT", "UPDATE", "DELETE"))
        connection = context["connection"]
        may_fail = is_read or (any(connection.savepoint_ids) and not sql.startswith(SAVEPOINTS))
        if may_fail and self.world.faults.happens("error"):
            self.world.has_failed = True
            raise passing_error(connection.vendor)
        return execute(sql, params, many, context)

    def conversation(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @contextmanager
        def conversation(transport: LocalTransport, *, now: datetime) -> Iterator[Any]:
            self.world.cross("conversation", BEFORE)
            with original(transport, now=now) as exchange:
                yield exchange
            self.world.cross("conversation", AFTER)

        return conversation

    def known(self, original: Callable[..., set[str]]) -> Callable[..., set[str]]:
        def known(queue: items.Queue, ids: Sequence[str]) -> set[str]:
            return set() if self.world.faults.happens("race") else original(queue, ids)

        return known

    def now(self) -> datetime:
        return turn.get().now()

    def monotonic(self) -> float:
        self.reads += 1
        return self.world.time + self.reads / 10

    def event(self, what: str) -> Callable[..., None]:
        return lambda queue, id, **_: self.world.watcher.event(turn.get().alias, what, queue, id)

    def log(self, message: str) -> None:
        if not any(re.search(expected, message) for expected in EXPECTED):
            self.world.breach = self.world.breach or Broken("LOG", message)


@contextmanager
def heard(signal: Any, receiver: Callable[..., None]) -> Iterator[None]:
    signal.connect(receiver, weak=False)
    try:
        yield
    finally:
        signal.disconnect(receiver)


@contextmanager
def rolled_back(alias: str) -> Iterator[None]:
    """One transaction for a whole history. The library takes it for a test's own and nests in it."""
    atomic = transaction.atomic(using=alias)
    atomic._from_testcase = True
    with atomic:
        try:
            yield
        finally:
            transaction.set_rollback(True, using=alias)
            connections[alias].run_on_commit = []


@contextmanager
def everywhere(original: Any, replacement: Any) -> Iterator[None]:
    """Replace a function or module wherever the library has imported it."""
    with ExitStack() as stack:
        for module in [module for name, module in sys.modules.items() if name.partition(".")[0] == "django_semq"]:
            for name in [name for name, value in vars(module).items() if value is original]:
                stack.enter_context(mock.patch.object(module, name, replacement))
        yield


@contextmanager
def logged(listen: Callable[[str], None]) -> Iterator[None]:
    """Hear the library's errors, and keep them from everybody else."""
    logger = logging.getLogger("django_semq")
    handler = logging.Handler(logging.ERROR)
    handler.emit = lambda record: listen(record.getMessage())
    before = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.level, logger.propagate = before
        logger.removeHandler(handler)
