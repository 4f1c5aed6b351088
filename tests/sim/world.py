"""The world: projects with their processes, foreign clients, the wire between them, and what time it is.

Whoever acts does so through `act`: as a node, on its clock and in its memory, until it is done or dies. The wake-ups
that follow a commit are steps of their own, which may come late or never. A node that has keys may keep them while
others act. All of it happens inside one transaction for each database, which is rolled back at the end.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from contextvars import Context
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import Enum
from json import JSONDecodeError
from typing import Any, NoReturn
from weakref import WeakKeyDictionary

from django.db import DatabaseError, OperationalError, connections, transaction
from django.test import override_settings

from django_semq import clock, locking, queues
from django_semq.driver.tick import Work
from django_semq.holder import semaphores
from django_semq.invariants import Finding, repair
from django_semq.models import (
    Ceiling,
    Client,
    Demand,
    Driver,
    Grant,
    IssuedGrant,
    Item,
    Key,
    KeyGroup,
    Nudge,
    Semaphore,
    State,
)
from django_semq.protocol.messages import Reply
from django_semq.queue import items
from tests.sim.application import SEMQ, Application, Row
from tests.sim.boundaries import CALLER
from tests.sim.faults import Crash, Faults
from tests.sim.invariants import Broken, Watcher, read
from tests.sim.peer import Peer, Wish
from tests.sim.projects import ALIASES, ONE
from tests.sim.router import turn
from tests.sim.seams import Seams, rolled_back
from tests.sim.wire import Letter, Wire, answer

NOON = datetime(2026, 1, 5, 12, 0, tzinfo=UTC)
PASSES = 60
"""Passes until a driver finds nothing more to do: with more of them it goes round in a circle."""
ROUNDS = 60
"""Minutes until everything is done, once the faults have stopped."""
AUDIT_EVERY = 25
"""Steps from one audit to the next: it reads everything."""
TABLES = (Item, Key, KeyGroup, Grant, Nudge, Semaphore, Ceiling, IssuedGrant, Demand)
"""What is to be empty when all is done and a day has passed."""


class Transaction(Enum):
    """In what transaction a caller's verb is called."""

    OWN = ""
    """None: the verb makes one for itself."""
    CALLERS = " in a transaction"
    ROLLED_BACK = " in a transaction that is rolled back"

    def __str__(self) -> str:
        return self.value


class RolledBack(Exception):
    """The caller's own error."""


@dataclass(eq=False)
class Node:
    """A process of a project. Its memory goes with it, its clock stays with the host."""

    world: World
    name: str
    alias: str
    ahead: float = 0.0
    """Seconds that its clock is before the true time."""
    rate: float = 1.0
    is_dead: bool = False
    locked: list[tuple[str, str]] = field(default_factory=list)
    """(queue, key) of what its last transaction had."""
    has_semaphores: bool = False

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        """A new process: it knows nothing."""
        self.is_dead = False
        self.context = Context()
        self.context.run(turn.set, self)
        self.work = Work.inline()
        self.waiting: WeakKeyDictionary = WeakKeyDictionary()
        """Of `items._Pump`: what its commits want to be pumped."""

    def now(self) -> datetime:
        return NOON + timedelta(seconds=self.ahead + self.rate * self.world.time)

    def __str__(self) -> str:
        return self.name


@dataclass(eq=False)
class Commit:
    alias: str
    nudged: set[tuple[str, str]]
    """(queue, key) of the nudges that it left."""


@dataclass(eq=False)
class Hook:
    """What a node does after one of its commits, if it comes to it."""

    node: Node
    function: Callable[[], object]
    commit: Commit

    def __str__(self) -> str:
        return self.function.__qualname__.replace(".<locals>", "")


class World:
    def __init__(self, faults: Faults | None = None) -> None:
        self.faults = faults or Faults(random.Random(0))
        self.time = 0.0
        self.trace: list[str] = []
        self.steps = 0
        self.left = 0
        """Keys that a pump found taken and left to their owner."""
        self.nodes = [Node(self, f"{alias[4:]}-{number}", alias) for alias in ALIASES for number in (1, 2)]
        self.peers = [Peer("far-1"), Peer("far-2")]
        self.wire = Wire()
        self.hooks: list[Hook] = []
        self.keys_held: dict[tuple[str, str, str], Node] = {}
        """(database, queue, key) -> the node whose transaction has it."""
        self.rows_held: set[tuple[str, int]] = set()
        """(database, row) of items that some caller's open transaction has."""
        self.newest_nudge = dict.fromkeys(ALIASES, 0)
        self.others: Callable[[], None] | None = None
        """What others do while a node keeps its keys, or waits for its application."""
        self.acting: list[Node] = []
        self.touched: set[str] = set()
        """Databases in which something was done, until nobody is in the middle of anything."""
        self.breach: Broken | None = None
        self.has_failed = False
        """A statement was made to fail in this step."""
        self.has_died = False
        self.writes = 0
        self.unaudited: set[str] = set()
        self.next_audit = AUDIT_EVERY
        self.turns = 0
        self.ids = 0
        self.application = Application(self)
        self.watcher = Watcher(self)
        self.seams = Seams(self)

    # ------------------------------------------------------------------------------------------- beginning and end

    def __enter__(self) -> World:
        self.stack = ExitStack()
        try:
            self.stack.enter_context(override_settings(SEMQ=SEMQ, DATABASE_ROUTERS=["tests.sim.router.NodeRouter"]))
            for alias in ALIASES:
                self.stack.enter_context(rolled_back(alias))
            self.stack.enter_context(self.seams.installed())
        except BaseException:
            self.stack.close()
            raise
        return self

    def __exit__(self, *error: Any) -> None:
        self.stack.close()

    # ------------------------------------------------------------------------------------------------------ a step

    def act(
        self,
        node: Node,
        what: str,
        work: Callable[[], Any],
        told: Callable[[Any], None] | None = None,
        in_doubt: Callable[[], None] | None = None,
    ) -> Any:
        """Let a node do something. Returns what came of it: its result, the `Crash` of which it died, or its error.

        `told` notes a result before the rows are looked at; `in_doubt` finds out what a crash or an error has left.
        """
        self.acting.append(node)
        outer, items._Pump._waiting = items._Pump._waiting, node.waiting
        try:
            result = node.context.run(work)
            if told is not None:
                told(result)
        except (Crash, OperationalError, JSONDecodeError) as error:
            if isinstance(error, DatabaseError) and not locking.is_passing(error):
                raise
            result = error
            if in_doubt is not None:
                in_doubt()
        finally:
            items._Pump._waiting = outer
            self.acting.pop()
        self.note(node, what, result)
        self.collect_hooks(node)
        if isinstance(result, Crash):
            self.has_died = True
            self.bury(node)
        self.check(node.alias)
        return result

    def on(self, alias: str, work: Callable[[], Any]) -> Any:
        """Do something on a project's database that is no step of the world."""
        return next(node for node in self.nodes if node.alias == alias).context.copy().run(work)

    def bury(self, node: Node) -> None:
        """What only its memory knew is gone; its transaction is rolled back already."""
        self.hooks = [hook for hook in self.hooks if hook.node is not node]
        self.keys_held = {key: owner for key, owner in self.keys_held.items() if owner is not node}
        self.watcher.excuse(node.alias)
        node.start()

    def check(self, alias: str) -> None:
        """Everything that must hold after a step, and what must hold when nobody is in the middle of one."""
        self.touched.add(alias)
        if self.breach is not None:
            raise self.breach
        self.watcher.look(alias)
        if self.acting:
            return
        for alias in sorted(self.touched):
            if len(connections[alias].atomic_blocks) != 1 or locking._open.depth:
                self.broken("I11", "a transaction was left open")
            if self.has_failed:
                self.watcher.excuse(alias)
            self.watcher.outcomes(alias, is_excused=self.has_failed or self.has_died)
            self.watcher.nobody_forgotten(alias)
        self.unaudited |= self.touched
        self.touched.clear()
        self.has_failed = self.has_died = False
        if self.steps >= self.next_audit:
            for alias in sorted(self.unaudited):
                self.watcher.recount(alias)
            self.unaudited.clear()
            self.next_audit = self.steps + AUDIT_EVERY

    def broken(self, invariant: str, what: str) -> NoReturn:
        """Kept besides: the library may catch what is raised in the functions that it calls."""
        self.breach = self.breach or Broken(invariant, what)
        raise self.breach

    def note(self, who: object, what: str, result: Any = None) -> None:
        """Write a step down."""
        self.steps += 1
        came = "" if result is None else f" -> {shown(result)}"
        self.trace.append(f"{self.steps:5} {self.time:7.0f} {'  ' * len(self.acting)}{who}: {what}{came}")

    def pass_time(self, seconds: float) -> None:
        self.time += seconds

    # --------------------------------------------------------------------------------------------- items and drivers

    def enqueue(
        self, node: Node, queue: str, wanted: Sequence[tuple[str, str, str]], *, how: Transaction = Transaction.OWN
    ) -> Any:
        """Enqueue (key, group, id) each."""
        accepted = self.watcher.accepted[node.alias]
        new = {(queue, uid): (key, group, {"of": uid}) for key, group, uid in reversed(wanted)}
        given = [{"key": key, "group": group, "id": uid, "body": {"of": uid}} for key, group, uid in wanted]

        def told(result: Any) -> None:
            for uid in result.queued if result else ():
                # What has ended may have been released in a step that is still under way.
                is_over = self.watcher.row_of(node.alias, queue, uid) in self.application.ended
                if (queue, uid) in accepted and not is_over:
                    self.broken("I7", f"{uid} was stored a second time")
                accepted[queue, uid] = new[queue, uid]

        def in_doubt() -> None:
            stored = set(read(node.alias, Item, "queue", "uid"))
            accepted.update((at, item) for at, item in new.items() if at in stored and at not in accepted)

        what = f"enqueue {queue} {', '.join('/'.join(filter(None, one)) for one in wanted)}{how}"
        work = self.within(node, how, lambda: queues[queue].enqueue_many(given))
        return self.act(node, what, work, told, in_doubt)

    def cancel(self, node: Node, queue: str, uid: str, *, how: Transaction = Transaction.OWN) -> Any:
        accepted = self.watcher.accepted[node.alias]
        row = self.watcher.row_of(node.alias, queue, uid)

        def told(result: Any) -> None:
            if result:
                if row is None or self.watcher.items[node.alias][row[1]].state != State.QUEUED:
                    self.broken("I7", f"{uid} was cancelled and did not wait")
                del accepted[queue, uid]

        def in_doubt() -> None:
            if (queue, uid) not in read(node.alias, Item, "queue", "uid"):
                accepted.pop((queue, uid), None)

        work = self.within(node, how, lambda: queues[queue].cancel(uid))
        return self.act(node, f"cancel {queue} {uid}{how}", work, told, in_doubt)

    def end(self, row: Row) -> None:
        """The work of an item is done."""
        self.note("-", f"{self.application.running[row].id} has ended")
        self.application.end(row)

    def release(self, node: Node, queue: str, *uids: str, how: Transaction = Transaction.OWN) -> Any:
        """Returns the ids of those that were released."""
        work = self.within(node, how, lambda: queues[queue].release_many(uids))
        return self.act(node, f"release {queue} {', '.join(uids)}{how}", work)

    def advance(self, node: Node) -> Any:
        """One pass of the node's driver."""
        return self.act(node, "drive once", lambda: self.pass_of(node))

    def tick(self, node: Node) -> Any:
        """Drive until nothing moves. Returns in how many seconds, by its clock, the node says it is needed next."""

        def drive() -> float | None:
            passes = 0
            while self.pass_of(node):
                passes += 1
                if passes == PASSES:
                    self.broken("L3", "a driver goes round in circles")
            due = node.work.next_due(clock.now())
            return None if due is None else round((due - clock.now()).total_seconds(), 1)

        return self.act(node, "tick", drive)

    def pass_of(self, node: Node) -> bool:
        now = clock.now()
        moved = node.work.advance(now)
        due = node.work.next_due(now)
        if not moved and due is not None and due <= now:
            self.broken("L3", "a driver that finds nothing to do is needed at once")
        if moved or (due is not None and due - now < timedelta(seconds=1)):
            self.watcher.excuse(node.alias)
        return moved

    def within(self, node: Node, how: Transaction, work: Callable[[], Any]) -> Callable[[], Any]:
        """The work, in a transaction of the application's own if so wanted."""
        if how == Transaction.OWN:
            return work

        def call() -> Any:
            result = work()
            if how == Transaction.ROLLED_BACK:
                raise RolledBack
            return result

        def atomic(work: Callable[[], Any], *, using: str) -> Any:
            with transaction.atomic(using=using):
                return work()

        def do() -> Any:
            with suppress(RolledBack):
                return self.seams.crossing(CALLER, atomic, call, node.alias)

        return do

    # ------------------------------------------------------------------------------------------------------- hooks

    def deliver(self, hook: Hook) -> Any:
        """A node comes to what it does after a commit."""
        self.hooks.remove(hook)
        return self.act(hook.node, f"after its commit: {hook}", hook.function)

    def lose(self, hook: Hook) -> None:
        self.note(hook.node, f"never comes to {hook}")
        self.hooks.remove(hook)
        self.watcher.excused[hook.commit.alias] |= hook.commit.nudged

    def collect_hooks(self, node: Node) -> None:
        """What Django would run now, after a commit: it has dropped the hooks of what was rolled back."""
        connection = connections[node.alias]
        hooks, connection.run_on_commit = connection.run_on_commit, []
        where = f"id > {self.newest_nudge[node.alias]}"
        nudges = read(node.alias, Nudge, "row", "queue", "key", where=where)
        if nudges:
            self.newest_nudge[node.alias] = nudges[-1][0]
        commit = Commit(node.alias, {(queue, key) for _row, queue, key in nudges})
        self.hooks += [Hook(node, function, commit) for _savepoints, function, _robust in hooks]

    # --------------------------------------------------------------------------------------------------- operators

    def operate(self, node: Node, what: str, *values: Any, how: Transaction = Transaction.OWN) -> Any:
        """A verb of `django_semq.holder.semaphores`, by its name."""
        work = self.within(node, how, lambda: getattr(semaphores, what)(*values))
        return self.act(node, f"{what} {' '.join(str(value) or '-' for value in values)}{how}", work)

    def mend(self, node: Node, key: str) -> Any:
        """The doctor mends a key, of which nothing is wrong."""
        findings = [Finding(queue, key, "", "queued", 0, 0) for queue in SEMQ["QUEUES"]]
        return self.act(node, f"doctor mends {key}", lambda: repair(findings, now=clock.now()))

    def deploy(self, node: Node) -> None:
        """The settings have changed since the last process looked, or so the stored digest makes it believe."""
        self.act(node, "is deployed", lambda: Driver.objects.update(rules_digest=""))
        self.bury(node)

    def spoil_key(self, node: Node, key: str) -> None:
        """A row that the pump cannot read: its key alone must suffer."""
        answer = "{"
        self.act(node, f"spoil {key}", lambda: Semaphore.objects.filter(name=key).update(answer=answer))

    def spoil_item(self, node: Node, row: int) -> None:
        uid = self.watcher.items[node.alias][row].uid
        self.act(node, f"spoil {uid}", lambda: Item.objects.filter(pk=row).update(body="{"))

    # ------------------------------------------------------------------------------------------------------- peers

    def want(self, peer: Peer, key: str, group: str) -> None:
        wish = peer.want(key, group, NOON + timedelta(seconds=self.time))
        self.note(peer.name, f"has item {wish.number} for {key}{'/' if group else ''}{group}")

    def claim(self, peer: Peer, key: str) -> None:
        """A peer claims an item on each of its grants of the key that has permits left."""
        before = len(peer.may_start)
        peer.claim(key, 1)
        if len(peer.may_start) > before:
            self.note(peer.name, f"claims {len(peer.may_start) - before} of {key}")

    def send(self, peer: Peer, kind: str, key: str) -> Letter:
        """A peer sends a request or a sync."""
        letter = Letter(peer, *(peer.request(key) if kind == "request" else peer.sync(key)))
        self.wire.letters.append(letter)
        self.note(peer.name, f"sends {letter}")
        return letter

    def carry(self, letter: Letter, *, keep: bool = False, to: Node | None = None) -> Letter | None:
        """Bring a letter to where it goes; a copy of it may stay on the wire. Returns the holder's answer, if any."""
        if not keep:
            self.wire.letters.remove(letter)
        if letter.answer is not None:
            self.note("wire", f"brings {letter}")
            if isinstance(letter.answer, Reply):
                letter.peer.receive(letter, letter.answer)
            self.check(ONE)
            return None
        node = to or self.faults.rng.choice(self.free_nodes(ONE))
        reply = self.act(node, f"hears {letter}", lambda: answer(letter, node))
        if not isinstance(reply, Letter):
            return None
        self.wire.letters.append(reply)
        return reply

    def drop(self, letter: Letter) -> None:
        self.wire.letters.remove(letter)
        self.note("wire", f"loses {letter}")

    def carry_twice(self, letter: Letter) -> None:
        """I8: a sync that comes twice changes nothing the second time. By another clock a window may be over."""
        node = self.faults.rng.choice(self.free_nodes(ONE))
        first = self.carry(letter, keep=True, to=node)
        rows = self.holder_rows()
        if self.carry(letter, to=node) is not None and first is not None and rows != self.holder_rows():
            self.broken("I8", f"{letter} changed something when it came again")

    def holder_rows(self) -> list[Any]:
        return [
            read(ONE, IssuedGrant, "uid", "permits", "claimed", "released", "clamped"),
            read(ONE, Semaphore, "name", "footprint"),
            read(ONE, Ceiling, "semaphore_id", "name", "footprint"),
            read(ONE, Demand, "semaphore_id", "client_id", "group", "count"),
        ]

    def end_wish(self, peer: Peer, wish: Wish) -> None:
        self.note(peer.name, f"item {wish.number} has ended")
        peer.end(wish)

    def evict(self, peer: Peer, evicted_at: datetime | None) -> None:
        """An operator refuses a peer, or takes it back (None)."""
        what = f"{'evict' if evicted_at else 're-admit'} {peer.name}"
        work = lambda: Client.objects.filter(client_id=peer.name).update(evicted_at=evicted_at)  # noqa: E731
        self.act(self.free_nodes(ONE)[0], what, work)

    # --------------------------------------------------------------------------------------------------- all is well

    def heal(self) -> None:
        """From now on everything goes well. What was under way is lost, and operators put things right."""
        self.note("-", "all is well from now on")
        self.faults.stop()
        self.others = None
        self.rows_held.clear()
        for hook in list(self.hooks):
            self.lose(hook)
        self.wire.letters.clear()
        for alias in ALIASES:
            node = self.free_nodes(alias)[0]
            self.act(node, "mend what was spoiled", lambda alias=alias: self.mend_rows(alias))
            names = dict(read(alias, Semaphore, "row", "name"))
            changed = "has_override OR paused"
            rows = [(name,) for (name,) in read(alias, Semaphore, "name", where=changed)]
            rows += [(names[key], group) for key, group in read(alias, Ceiling, "semaphore_id", "name", where=changed)]
            for at in rows:
                self.operate(node, "reset_limit", *at)
                self.operate(node, "resume", *at)
            self.operate(node, "refresh")
        for peer in self.peers:
            peer.is_eager = True
            self.evict(peer, None)

    def mend_rows(self, alias: str) -> None:
        Semaphore.objects.filter(answer="{").update(answer="", answered_at=None)
        for (queue, uid), (_key, _group, body) in self.watcher.accepted[alias].items():
            Item.objects.filter(queue=queue, uid=uid, body="{").update(body=json.dumps(body))

    def settle(self) -> None:
        """L1: everything runs and ends in a bounded time; a day later nothing is left of it, and nobody writes."""
        for _round in range(ROUNDS):
            if self.is_done():
                break
            self.live_on()
        else:
            self.broken("L1", f"after {ROUNDS} rounds there is still {self.what_is_left()}")
        for alias in ALIASES:
            self.watcher.recount(alias)
        for _day in range(3):
            self.pass_time(timedelta(days=1, minutes=20).total_seconds())
            for node in self.nodes[::2]:
                self.tick(node)
        for alias in ALIASES:
            if left := [model.__name__ for model in TABLES if read(alias, model, "row")]:
                self.broken("L1", f"a day later there are rows of {', '.join(left)} in {alias}")
        for node in self.nodes:
            self.writes = 0
            self.tick(node)
            if self.writes:
                self.broken("L3", f"{self.writes} statements of an idle driver write")

    def live_on(self) -> None:
        """A minute in which everybody does his part once."""
        self.pass_time(60)
        self.turns += 1
        for row in list(self.application.running):
            self.end(row)
        for alias in ALIASES:
            node = self.free_nodes(alias)[self.turns % 2]
            for queue in SEMQ["QUEUES"]:
                admitted = [seen for seen in self.watcher.admitted(alias) if seen.queue == queue]
                if ended := [seen.uid for seen in admitted if (alias, seen.row) in self.application.ended]:
                    self.release(node, queue, *ended)
            self.tick(node)
        for peer in self.peers:
            for wish in peer.running:
                self.end_wish(peer, wish)
            for key in peer.open_keys:
                self.send(peer, "request", key)
                self.carry_all()
                self.send(peer, "sync", key)
                self.carry_all()
        for hook in list(self.hooks):
            self.lose(hook)

    def carry_all(self) -> None:
        while self.wire.letters:
            self.carry(self.wire.letters[0])

    def is_done(self) -> bool:
        return not self.what_is_left()

    def what_is_left(self) -> list[str]:
        left = [seen.uid for alias in ALIASES for seen in self.watcher.items[alias].values()]
        left += [
            f"{name} of {alias}"
            for alias in ALIASES
            for (name,) in read(alias, Semaphore, "name", where="footprint > 0")
        ]
        return left + [peer.name for peer in self.peers if peer.open_keys]

    # --------------------------------------------------------------------------------------------- what nodes meet

    def cross(self, place: str, moment: str) -> None:
        try:
            self.faults.cross(place, moment)
        except Crash:
            turn.get().is_dead = True
            raise

    def meanwhile(self, node: Node, why: str) -> None:
        if self.others is not None and len(self.acting) == 1:
            self.note(node, why)
            self.others()

    def refuse_open_transaction(self, what: str) -> None:
        if len(connections[turn.get().alias].atomic_blocks) != 1:
            self.broken("I11", f"{what} is called in a transaction")

    def free_nodes(self, alias: str) -> list[Node]:
        return [node for node in self.nodes if node.alias == alias and node not in self.acting]


def shown(result: Any) -> str:
    if isinstance(result, Crash):
        return f"dies at {result}"
    if isinstance(result, Exception):
        return f"fails with {type(result).__name__}"
    if isinstance(result, items.EnqueueResult):
        words = [f"stored {', '.join(result.queued)}"] if result.queued else []
        words += [f"known {', '.join(result.duplicates)}"] if result.duplicates else []
        return "; ".join(words)
    if isinstance(result, list):
        return ", ".join(map(str, result)) or "nothing"
    return str(result)
