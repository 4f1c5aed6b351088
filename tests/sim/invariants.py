"""What must hold after every step, and what must come true once the faults stop.

    I1   what runs of a key or group is within its limit         `limits`
    I2   footprints are the sums over what is issued             the library's own audit
         and never rise while above the limit                    `footprints`
    I3   a grant's counters keep their chain                     constraints of the tables, the audit's pairs
         never fall, and after the clamp no claim is accepted     `counters`
    I4   the same for leases                                     waits for leases
    I5   what runs is covered by a row that counts               `cover`
    I6   the client's counters are the counts of its rows        the audit
    I7   an accepted item is there until released or cancelled   `nothing_lost`
    I8   a message or release repeated changes nothing           `World.again`
    I9   a reply is applied once, none below the newest          waits for the remote client (the peers' own rule)
    I10  within a key and group, first come is first admitted    `order`
    I11  no transaction is open while the application runs       `World.refuse_open_transaction`
         and keys are locked before semaphores                   `World.lock_keys`
    I12  an event at most once for each change, after it         `event`
    P5   a hand-over's outcome counts for its own attempt only   `fence`
         and for that it does count                              `outcomes`
    L1   with no more faults, everything runs and ends           `World.settle`
    L2   somebody is going to look at every nudge                `nobody_forgotten`
    L3   a driver with nothing to do writes nothing              `World.settle`
    LOG  the library reports nothing that it should never see    `World.log`

No statement here counts permits: the truth is who runs.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db import connections, models

from django_semq.holder import ledger
from django_semq.invariants import audit
from django_semq.models import Ceiling, Grant, IssuedGrant, Item, Key, Nudge, Semaphore, State
from tests.sim.application import BASE, BASE_CEILINGS, GROUPS
from tests.sim.projects import ALIASES, ONE

if TYPE_CHECKING:
    from django_semq.queue.admission import AdmittedItem
    from tests.sim.world import World


class Broken(AssertionError):
    """An invariant does not hold."""

    def __init__(self, invariant: str, what: str) -> None:
        super().__init__(f"{invariant}: {what}")
        self.invariant = invariant


class Seen(NamedTuple):
    """An item's row after a step."""

    row: int
    queue: str
    uid: str
    key: str
    group: str
    state: int
    attempt: int
    handed_over: bool


OURS = "/* the world */"
"""Marks statements that are no part of the simulation."""
Accepted = tuple[str, str, Any]
"""(key, group, body) of an item that the queue has accepted."""


@dataclass
class Watcher:
    world: World
    items: dict[str, dict[int, Seen]] = field(default_factory=lambda: {alias: {} for alias in ALIASES})
    """As of the last look."""
    accepted: dict[str, dict[tuple[str, str], Accepted]] = field(
        default_factory=lambda: {alias: {} for alias in ALIASES}
    )
    """What the callers were told is stored: (queue, id) -> item."""
    allowed: dict[tuple[str, str, str | None], float] = field(default_factory=dict)
    """(database, key, group or None) -> how many may run: the limit, and after it was lowered what ran then."""
    used: dict[tuple[str, str, str | None], int] = field(default_factory=dict)
    known: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    """(table, grant) -> its counters at the last look."""
    excused: dict[str, set[tuple[str, str]]] = field(default_factory=lambda: {alias: set() for alias in ALIASES})
    """(queue, key) whose wake-up the world itself took away: the next tick finds them."""
    unrecorded: set[tuple[str, int, int]] = field(default_factory=set)
    """(database, row, attempt) of hand-overs whose outcome could not be written."""
    events: Counter[tuple[str, ...]] = field(default_factory=Counter)
    rows: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """(database, queue, id) -> rows that ever had it."""

    def look(self, alias: str) -> None:
        """Check what can be broken by a step in this database."""
        now = {row[0]: Seen(*row) for row in read(alias, Item, *Seen._fields)}
        self.nothing_lost(alias, now)
        self.order(alias, now)
        self.rows.update((alias, seen.queue, seen.uid) for seen in now.values() if seen.row not in self.items[alias])
        self.items[alias] = now
        self.limits(alias)
        self.cover(alias)
        self.fence(alias)
        self.counters(alias)

    def recount(self, alias: str) -> None:
        """The library's own audit, and what it cannot know. Dear, so not after each step."""
        if findings := self.world.on(alias, audit):
            self.world.broken("I2, I3, I6", "; ".join(map(str, findings)))
        connections[alias].check_constraints()  # Those that the database checks at the commit, which never comes.

    # ------------------------------------------------------------------------------------------------------- safety

    def limits(self, alias: str) -> None:
        """I1 and the second half of I2."""
        here = Counter(at for seen in self.admitted(alias) for at in ((seen.key, None), (seen.key, seen.group)))
        if alias == ONE:
            wishes = [wish for peer in self.world.peers for wish in peer.running]
            here.update(at for wish in wishes for at in ((wish.key, None), (wish.key, wish.group)))
        claims = Counter(here)
        if alias == ONE:
            wishes = [wish for peer in self.world.peers for wish in peer.may_start]
            claims.update(at for wish in wishes for at in ((wish.key, None), (wish.key, wish.group)))
        for (key, group), (limit, used) in self.limits_now(alias).items():
            at = (alias, key, group)
            allowed = self.allowed.get(at, inf)
            if here[key, group] > max(allowed, limit):
                self.world.broken("I1", f"{here[key, group]} run of {shown(key, group)} of {alias}, allowed {allowed}")
            self.allowed[at] = max(limit, min(allowed, claims[key, group]))
            if used > max(limit, self.used.get(at, 0)):
                self.world.broken("I2", f"the footprint of {shown(key, group)} rose to {used}, its limit is {limit}")
            self.used[at] = used

    def limits_now(self, alias: str) -> dict[tuple[str, str | None], tuple[float, int]]:
        """(key, group or None for all) -> limit in force and footprint. Paused is 0: nothing more may start."""
        found: dict[tuple[str, str | None], tuple[float, int]] = {
            (key, None): (limit, 0) for key, limit in BASE.items()
        }
        found |= {(key, group): (BASE_CEILINGS.get((key, group), inf), 0) for key in BASE for group in GROUPS}
        names = {}
        columns = ("has_override", "override", "paused", "footprint")
        for pk, key, *setting, footprint in read(alias, Semaphore, "id", "name", *columns):
            names[pk] = key
            found[key, None] = (_limit(found[key, None][0], *setting), footprint)
        for pk, group, *setting, footprint in read(alias, Ceiling, "semaphore_id", "name", *columns):
            found[names[pk], group] = (_limit(found[names[pk], group][0], *setting), footprint)
        return found

    def cover(self, alias: str) -> None:
        """I5: what runs has an admitted row; what runs on a peer's grant counts at the holder."""
        for (at, row), item in self.world.application.running.items():
            if at == alias and (row not in self.items[alias] or self.items[alias][row].state != State.ADMITTED):
                self.world.broken("I5", f"{item.id} of {alias} runs without a permit")
        if alias != ONE or not any(peer.grants for peer in self.world.peers):
            return
        issued = {row[0]: IssuedRow(*row) for row in read(alias, IssuedGrant, *IssuedRow._fields)}
        for peer in self.world.peers:
            for held in peer.grants.values():
                counts = ledger.footprint(issued[held.uid]) if held.uid in issued else 0
                if len(held.running) > counts:
                    self.world.broken("I5", f"{len(held.running)} run on a grant of {peer.name} that counts {counts}")

    def nothing_lost(self, alias: str, now: dict[int, Seen]) -> None:
        """I7. What has ended may be released by whoever hears of it."""
        stored = {(seen.queue, seen.uid) for seen in now.values()}
        for at in self.accepted[alias].keys() - stored:
            if self.row_of(alias, *at) not in self.world.application.ended:
                self.world.broken("I7", f"item {at} of {alias} is lost")
            del self.accepted[alias][at]
        if strangers := stored - self.accepted[alias].keys():
            self.world.broken("I7", f"nobody was told that {sorted(strangers)} of {alias} are stored")

    def order(self, alias: str, now: dict[int, Seen]) -> None:
        """I10. An item whose row another transaction has may be passed."""
        before = self.items[alias]
        waiting: dict[tuple[str, str, str], int] = {}
        for seen in now.values():
            if seen.state == State.QUEUED and (alias, seen.row) not in self.world.rows_held:
                waiting.setdefault((seen.queue, seen.key, seen.group), seen.row)
        for seen in now.values():
            is_new = seen.state == State.ADMITTED and (seen.row not in before or not before[seen.row].state)
            first = waiting.get((seen.queue, seen.key, seen.group), seen.row)
            if is_new and first < seen.row:
                self.world.broken("I10", f"{seen.uid} was admitted before {now[first].uid}, which came first")
            if seen.row in before and before[seen.row].state > seen.state:
                self.world.broken("I10", f"{seen.uid} was admitted and waits again")

    def fence(self, alias: str) -> None:
        """P5: a row says "handed over" only if the hand-over of this very attempt succeeded."""
        for seen in self.items[alias].values():
            if seen.handed_over and (alias, seen.row, seen.attempt) not in self.world.application.returned:
                self.world.broken("P5", f"attempt {seen.attempt} of {seen.uid} counts as handed over, and failed")

    def outcomes(self, alias: str, *, is_excused: bool) -> None:
        """P5: what was handed over has a row that knows it, unless a crash, an error or a held row came in between."""
        for seen in self.admitted(alias):
            at = (alias, seen.row, seen.attempt)
            if seen.handed_over or at not in self.world.application.returned or at in self.unrecorded:
                continue
            if not is_excused and (alias, seen.row) not in self.world.rows_held:
                self.world.broken("P5", f"{seen.uid} was handed over, and its row does not know it")
            self.unrecorded.add(at)

    def counters(self, alias: str) -> None:
        """The second half of I3; and a clamped grant claims no more."""
        issued = ("claimed", "released", "clamped")
        for model, columns in ((IssuedGrant, issued), (Grant, ("admitted", "released"))):
            for uid, *counts in read(alias, model, "uid", *columns):
                at = (model.__name__, uid)
                known = self.known.get(at, [])
                if any(new < old for new, old in zip(counts, known, strict=False)):
                    self.world.broken("I3", f"counters of grant {uid} fell from {known} to {counts}")
                if len(known) == len(issued) and known[2] and counts[0] > known[0]:
                    self.world.broken("I3", f"grant {uid} was clamped at {known[0]} claims and has {counts[0]}")
                self.known[at] = counts

    def handed_over(self, alias: str, item: AdmittedItem) -> None:
        """admit() got an item: the right one, in its right attempt."""
        row = (alias, item.row)
        stored = list(read(alias, Item, "uid", "state", "attempt", where=f"id = {item.row:d}"))
        if not stored:
            if row not in self.world.application.ended:
                self.world.broken("I7", f"{item.id} is handed over, was never done and has no row")
            return
        ((uid, state, attempt),) = stored
        if uid != item.id or state != State.ADMITTED or item.attempt > attempt:
            self.world.broken("I5", f"{item.id}, attempt {item.attempt}, is handed over; its row says {stored[0]}")
        queue = self.queue_of(*row)
        if (item.key, item.group, item.body) != self.accepted[alias].get((queue, uid)):
            self.world.broken("I7", f"{item.id} is handed over with {item.body}")

    # ------------------------------------------------------------------------------------------------------- events

    def event(self, alias: str, what: str, queue: str, uid: str) -> None:
        """I12: at most one event of a kind for each row that ever had this id. Events may be lost."""
        self.events[alias, what, queue, uid] += 1
        if self.events[alias, what, queue, uid] > self.rows[alias, queue, uid]:
            self.world.broken("I12", f"{what} {uid} was said {self.events[alias, what, queue, uid]} times")

    # ----------------------------------------------------------------------------------------------------- liveness

    def nobody_forgotten(self, alias: str) -> None:
        """L2: for each nudge a hook is pending, or the world took its wake-up away, or the driver was asked."""
        nudged = set(read(alias, Nudge, "queue", "key"))
        self.excused[alias] &= nudged
        promised = {at for hook in self.world.hooks if hook.commit.alias == alias for at in hook.commit.nudged}
        if forgotten := nudged - promised - self.excused[alias]:
            aside = set(read(alias, Key, "queue", "name", where="set_aside_until IS NOT NULL"))
            if forgotten := forgotten - aside:
                self.world.broken("L2", f"nobody is going to look at {sorted(forgotten)} of {alias}")

    def excuse(self, alias: str) -> None:
        """Somebody's wake-up was taken away, or the driver was told: it is going to look."""
        self.excused[alias] |= set(read(alias, Nudge, "queue", "key"))

    # ------------------------------------------------------------------------------------------------------- reading

    def admitted(self, alias: str) -> list[Seen]:
        return [seen for seen in self.items[alias].values() if seen.state == State.ADMITTED]

    def queue_of(self, alias: str, row: int) -> str:
        return next(queue for (queue,) in read(alias, Item, "queue", where=f"id = {row:d}"))

    def row_of(self, alias: str, queue: str, uid: str) -> tuple[str, int] | None:
        """The item that had this id at the last look."""
        rows = [seen.row for seen in self.items[alias].values() if (seen.queue, seen.uid) == (queue, uid)]
        return (alias, rows[0]) if rows else None


class IssuedRow(NamedTuple):
    uid: str
    permits: int
    claimed: int
    released: int
    clamped: bool


def _limit(base: float, has_override: bool, override: int | None, paused: bool) -> float:
    if paused:
        return 0
    if has_override:
        return inf if override is None else override
    return base


def shown(key: str, group: str | None) -> str:
    return f"key {key}" if group is None else f"group {key}/{group or '-'}"


def read(alias: str, model: type[models.Model], *columns: str, where: str = "") -> list[tuple[Any, ...]]:
    """Columns of a table's rows, in the order of their ids, without a model's object for each."""
    connection = connections[alias]
    names = ["id" if name == "row" else connection.ops.quote_name(name) for name in columns]
    condition = f"WHERE {where}" if where else ""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {OURS} {', '.join(names)} FROM {model._meta.db_table} {condition} ORDER BY id")
        return cursor.fetchall()
