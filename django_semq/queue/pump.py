"""The only code on the client side that counts permits. Callers write rows of their own; this folds them.

One pump takes up to 100 keys in one short transaction: it locks the key rows that nobody else has, folds their
nudges into group counters and grants, tells the holder what came back and what waits, and admits the oldest
items for the permits it gets. Everything is set-based: the number of statements does not depend on how many
keys, groups or items are in the batch (chunks of 500 apart), and nobody counts or scans a backlog.

No wake-up is lost: a caller commits its nudge before it tries the key; if another pump has the key, that pump
looks for nudges again after its own end, which is after the caller's try. A pump that dies in between leaves
the nudge as a row, and the driver's next tick takes it.
"""

from __future__ import annotations

import logging
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar

from django.db import DatabaseError, connections

from django_semq import clock, conf
from django_semq.exceptions import Held, HolderRefused, TransportError, Unprepared, described
from django_semq.locking import (
    TRIES,
    after_commit,
    delete_by_id,
    is_lost,
    is_passing,
    lock_keys,
    notify,
    oldest_ids,
    run,
)
from django_semq.models import Grant, Item, Key, KeyGroup, Nudge, State
from django_semq.protocol.messages import (
    BlockedReason,
    Envelope,
    GrantReport,
    GroupDemand,
    PermitRequest,
    PermitSync,
    Reply,
)
from django_semq.protocol.names import shown
from django_semq.rows import (
    alias_of,
    as_datetime,
    by_index,
    chunks,
    insert,
    query,
    select,
    select_tuples,
    update_each,
    write_back,
)
from django_semq.signals import driver_wanted, item_admitted, item_blocked, keys_nudged
from django_semq.transport.base import Answer, HolderTransport, transport_of

logger = logging.getLogger(__name__)

T = TypeVar("T")
Exchange = Callable[[Sequence[Envelope]], list[Answer]]

BATCH_KEYS = 100
NUDGES_PER_ROUND = 10_000
PERMITS_PER_ROUND = 2_000
"""Of one group: a key without a limit must not hold the database for the length of its backlog."""
CALLER_ROUNDS = 3
"""Rounds a caller's hook pumps at most: what is left is the driver's, so that no request pays for others' work."""
SET_ASIDE = (timedelta(seconds=1), timedelta(minutes=5))
PREPARATIONS = 3
LOOKS = 5
"""At keys that another transaction has at the holder. Another pump has them for some milliseconds; an operator's
transaction for as long as it likes, and then they wait for the next pass."""

_driver: ContextVar[Callable[[], None] | None] = ContextVar("django_semq_driver", default=None)
_daemon: Callable[[], None] | None = None
"""Of a process that only drives: whatever thread calls, the next pass pumps."""


@contextmanager
def driven_by(wake: Callable[[], None]) -> Iterator[None]:
    """Inside runs a driver, or application code that it calls: pumps announce nothing, and a commit's hook leaves
    the pump to the driver's next pass, which takes many releases at once. `wake` tells it, from any thread."""
    token = _driver.set(wake)
    try:
        yield
    finally:
        _driver.reset(token)


def set_daemon(wake: Callable[[], None] | None) -> None:
    """From now on this process drives for good (None: no more), and all its threads leave pumps to it."""
    global _daemon
    _daemon = wake


def pump_for_caller(queue: str, keys: Iterable[str]) -> None:
    """Pump after a caller's commit. Never raises: what is left or failed goes to the driver with a wake-up."""
    if (wake := _driver.get() or _daemon) is not None:
        wake()
        return
    names = sorted(keys)
    vendor = connections[alias_of(Key)].vendor
    try:
        # SQLite has one write lock, and waiting for it is the busy timeout's job: one try.
        left = pump(
            queue,
            names[:BATCH_KEYS],
            now=clock.now(),
            rounds=CALLER_ROUNDS,
            tries=1 if vendor == "sqlite" else TRIES,
        ).left
        if left or names[BATCH_KEYS:]:
            want_driver(queue)
    except DatabaseError as error:
        logger.info("queue %s: a caller's pump failed (%s); the driver does it", queue, error)
        _want_driver_or_log(queue)
    except Exception:
        logger.exception("queue %s: a caller's pump failed; the driver does it", queue)
        _want_driver_or_log(queue)


@dataclass(slots=True)
class Pumped:
    """What one call of `pump` did."""

    folded: int = 0
    introduced: int = 0
    admitted: int = 0
    left: list[str] = field(default_factory=list)
    """Keys that still have nudges when the rounds were over, and keys that somebody else has at the holder."""

    @property
    def moved(self) -> bool:
        return bool(self.folded or self.introduced or self.admitted)


def pump(queue: str, names: Iterable[str], *, now: datetime, rounds: int = 1000, tries: int = TRIES) -> Pumped:
    """Count for these keys until they have no nudge that another pump will not see.

    Keys that another pump has are left to it. After a crash at any point the nudges are still rows, or what they
    say is counted: both in one transaction. Raises a database error that did not pass within `tries`.
    """
    done = Pumped()
    transport = transport_of(queue)
    todo = sorted(set(names))
    for _round in range(rounds):
        if connections[alias_of(Key)].vendor == "sqlite":
            todo = _worth_locking(queue, todo, now)
        if not todo:
            break
        again: list[str] = []
        for batch in chunks(todo, BATCH_KEYS):
            again += _pump_batch(queue, batch, transport, done, now=now, tries=tries)
        todo = again
    done.left = sorted({*done.left, *todo})
    return done


def with_keys(queue: str, names: Sequence[str], work: Callable[[list[Key]], T]) -> T:
    """Do work under the locks of these keys, in a transaction of its own, then pump what callers left meanwhile.

    Everything but the pump that locks keys goes through here: a caller that found a key taken relies on a look
    for nudges after the owner's end, committed or rolled back.
    """
    try:
        return run(lambda: work(lock_keys(queue, names)), using=alias_of(Key))
    finally:
        pump_for_caller(queue, nudged_among(queue, names))


def nudged_among(queue: str, names: Sequence[str]) -> list[str]:
    """Those of these keys that have nudges."""
    condition = "queue = %s AND {key} IN %s GROUP BY {key}"
    return sorted(name for part in chunks(names) for (name,) in select_tuples(Nudge, ["key"], condition, queue, part))


def nudged_after(queue: str, name: str, now: datetime) -> tuple[list[str], str | None]:
    """Keys after this name that have nudges, but for those set aside; and the name to go on after, None at the end.

    A loose index scan, one probe for each key however many nudges it has. MySQL and MariaDB make one of GROUP BY;
    the others would read every nudge, and are told the probes.
    """
    connection = connections[alias_of(Nudge)]
    key, nudges, keys = connection.ops.quote_name("key"), Nudge._meta.db_table, Key._meta.db_table
    if connection.vendor == "mysql":
        found = (
            f"WITH found AS (SELECT {key} AS name FROM {nudges} {by_index(connection.alias, 'semq_nudge_key')}"
            f" WHERE queue = %s AND {key} > %s GROUP BY queue, {key} ORDER BY queue, {key} LIMIT %s)"
        )
        values: list[str | int] = [queue, name, BATCH_KEYS]
    else:
        first = f"SELECT MIN({key}) FROM {nudges} WHERE queue = %s AND {key} > "
        found = (
            f"WITH RECURSIVE found(name, position) AS ("
            f"SELECT ({first} %s), 1 UNION ALL SELECT ({first} found.name), position + 1 FROM found"
            f" WHERE found.name IS NOT NULL AND position < %s)"
        )
        values = [queue, name, queue, BATCH_KEYS]
    sql = (
        f"{found} SELECT name, EXISTS (SELECT 1 FROM {keys} k WHERE k.queue = %s AND k.name = found.name"
        f" AND k.set_aside_until > %s) FROM found WHERE name IS NOT NULL"
    )
    moment = connection.ops.adapt_datetimefield_value(now)
    with connection.cursor() as cursor:
        cursor.execute(sql, [*values, queue, moment])
        rows = sorted(cursor.fetchall())  # As the database compares them: by code point.
    names = [found for found, is_set_aside in rows if not is_set_aside]
    return names, rows[-1][0] if len(rows) == BATCH_KEYS else None


def want_driver(queue: str) -> None:
    """Ask for a driver: a hint, whose loss costs one driver period."""
    notify(queue)
    driver_wanted.send_robust(sender=Item, queue=queue)


def on_keys_nudged(*, queue: str, keys: list[str], **_kwargs: Any) -> None:
    """Somebody else made items of these keys eligible: look at them now."""
    if queue in conf.settings().queues:
        pump_for_caller(queue, keys)


keys_nudged.connect(on_keys_nudged, dispatch_uid="django_semq.queue.pump")


# ----------------------------------------------------------------------------------------------------------- a batch


def _pump_batch(
    queue: str,
    names: Sequence[str],
    transport: HolderTransport,
    done: Pumped,
    *,
    now: datetime,
    tries: int,
) -> list[str]:
    """Pump these keys once. Returns those to be looked at again."""
    try:
        turn = _attempt(queue, names, transport, now=now, tries=tries)
    except DatabaseError as error:
        if is_passing(error) or is_lost(error):
            raise
        return _one_by_one(queue, names, transport, done, error, now=now, tries=tries)
    except Exception as error:
        return _one_by_one(queue, names, transport, done, error, now=now, tries=tries)
    done.left += turn.held
    done.folded += turn.folded
    done.admitted += len(turn.admitted)
    # A key without nudges was removed by another pump; a row made for it anew would be nobody's to look at.
    missing = nudged_among(queue, turn.missing)
    if missing:
        _introduce(queue, missing, transport, now=now)
        done.introduced += len(missing)
    # After our commit, so that it sees every nudge whose owner found the key taken by us. A key that we found
    # taken is its owner's to look at.
    return sorted({*missing, *nudged_among(queue, turn.had)})


def _attempt(
    queue: str,
    names: Sequence[str],
    transport: HolderTransport,
    *,
    now: datetime,
    tries: int,
) -> _Turn:
    """One committed transaction for these keys, after what it needs was prepared, without those that somebody else
    goes on holding."""
    held: list[str] = []
    preparations = looks = 0
    while True:
        others = [name for name in names if name not in held]
        try:
            turn = run(partial(_take, queue, others, transport, now), using=alias_of(Key), tries=tries)
            turn.held = held
            return turn
        except Unprepared as error:
            preparations += 1
            if preparations > PREPARATIONS:
                raise
            transport.prepare(error.keys, now=now)
        except Held as error:
            looks += 1
            if looks < LOOKS:
                clock.pause(random.uniform(0, 0.005 * 2**looks))
            else:
                held = [*held, *error.keys]


def _take(queue: str, names: Sequence[str], transport: HolderTransport, now: datetime) -> _Turn:
    """What each try does from the start: a turn remembers what it has counted."""
    return _Turn(queue, names, transport, now).take()


def _one_by_one(
    queue: str,
    names: Sequence[str],
    transport: HolderTransport,
    done: Pumped,
    error: Exception,
    *,
    now: datetime,
    tries: int,
) -> list[str]:
    """One bad key must not stop the others of its batch: find it, and set it aside."""
    if len(names) == 1:
        _set_aside(queue, names[0], error, now)
        return []
    again: list[str] = []
    for name in names:
        again += _pump_batch(queue, [name], transport, done, now=now, tries=tries)
    return again


def _set_aside(queue: str, name: str, error: Exception, now: datetime) -> None:
    logger.error("queue %s: key %s is set aside", queue, shown(name), exc_info=error)

    def write() -> None:
        for key in lock_keys(queue, [name]):
            first, longest = SET_ASIDE
            until = now + min(first * 2 ** min(key.set_aside_count, 20), longest)
            Key.objects.filter(pk=key.pk).update(
                set_aside_until=until,
                set_aside_count=key.set_aside_count + 1,
                error=described(error),
                due_at=until,
            )

    run(write, using=alias_of(Key))


def _introduce(queue: str, names: Sequence[str], transport: HolderTransport, *, now: datetime) -> None:
    """Rows for new keys, in transactions of their own: InnoDB's insert-ignore waits for a locked row, and this
    must not happen while we hold others' keys."""
    transport.prepare(names, now=now)
    run(
        lambda: Key.objects.bulk_create([Key(queue=queue, name=name) for name in sorted(names)], ignore_conflicts=True),
        using=alias_of(Key),
    )


def _worth_locking(queue: str, names: Sequence[str], now: datetime) -> list[str]:
    """SQLite has one write lock for all: look before asking for it."""
    due = Key.objects.filter(queue=queue, name__in=names, due_at__lte=now).values_list("name", flat=True)
    return sorted({*nudged_among(queue, names), *due})


def _want_driver_or_log(queue: str) -> None:
    try:
        want_driver(queue)
    except Exception:
        logger.info("queue %s: no wake-up could be sent; the next tick looks anyway", queue)


# ------------------------------------------------------------------------------------------------- one transaction


@dataclass(slots=True)
class _Offer:
    """Permits of one group that the holder reserved in this transaction."""

    key: Key
    group: str
    grant_id: str
    permits: int
    got: int = 0


class _Turn:
    """One transaction of the pump. With an inline holder an item goes from queued to admitted in it."""

    def __init__(self, queue: str, names: Sequence[str], transport: HolderTransport, now: datetime) -> None:
        self.queue = queue
        self.names = names
        self.transport = transport
        self.now = now
        self.conf = conf.queue(queue)
        self.held: list[str] = []
        """Names left out, because somebody else has them at the holder."""
        self.missing: list[str] = []
        """Names without a row."""
        self.had: list[str] = []
        """Names whose rows were ours in this transaction, but for those set aside."""
        self.folded = 0
        self.admitted: list[int] = []
        self.keys: dict[str, Key] = {}
        self.groups: dict[tuple[str, str], KeyGroup] = {}
        self.oldest: dict[tuple[str, str], datetime] = {}
        self.changed: set[tuple[str, str]] = set()
        self.returned: list[Grant] = []
        self.by_key: dict[str, list[KeyGroup]] = defaultdict(list)
        """The groups, once all nudges are folded."""
        self.short: set[str] = set()
        """Keys that got fewer items than they counted."""
        self.more: set[str] = set()
        """Keys that could have more permits, in another round."""
        self.newly_blocked: list[tuple[str, KeyGroup]] = []

    def take(self) -> _Turn:
        if not self.names:
            return self
        locked = {key.name: key for key in lock_keys(self.queue, self.names)}
        if len(locked) < len(self.names):
            self.missing = self.without_row([name for name in self.names if name not in locked])
        self.keys = {
            name: key for name, key in locked.items() if key.set_aside_until is None or key.set_aside_until <= self.now
        }
        self.had = list(self.keys)
        nudges = self.take_nudges()
        named = {nudge.key for nudge in nudges}
        self.keys = {
            name: key
            for name, key in self.keys.items()
            if name in named or (key.due_at is not None and key.due_at <= self.now)
        }
        if not self.keys:
            return self
        self.read_groups()
        self.fold(nudges)
        with self.transport.conversation(now=self.now) as exchange:
            self.claim(self.ask_holder(exchange), exchange)
        self.write_groups()
        self.write_keys()
        if self.admitted:
            self.announce_admitted()
        if self.newly_blocked:
            self.announce_blocked()
        return self

    def without_row(self, names: Sequence[str]) -> list[str]:
        known = set(Key.objects.filter(queue=self.queue, name__in=names).values_list("name", flat=True))
        return [name for name in names if name not in known]

    def take_nudges(self) -> list[Nudge]:
        """Read without a lock and delete exactly what was read: never by key, never `id <= n`. Ids become visible
        out of order, and InnoDB would wait for every caller whose transaction is still open."""
        if not self.keys:
            return []
        condition = f"queue = %s AND {{key}} IN %s ORDER BY id LIMIT {NUDGES_PER_ROUND}"
        nudges = select(Nudge, condition, self.queue, list(self.keys))
        delete_by_id(Nudge, [nudge.pk for nudge in nudges])
        self.folded = len(nudges)
        return nudges

    def read_groups(self) -> None:
        # Ordered as in `oldest_ids`, for the same reason.
        item, group, key = (model._meta.db_table for model in (Item, KeyGroup, Key))
        by_oldest = by_index(alias_of(Item), "semq_item_oldest")
        sql = (
            f"SELECT g.*, (SELECT i.enqueued_at FROM {item} i {by_oldest} WHERE i.queue = k.queue"
            f" AND i.{{key}} = k.name AND i.{{group}} = g.name AND i.state <= {State.QUEUED:d}"
            f" ORDER BY i.state, i.id LIMIT 1) AS oldest"
            f" FROM {group} g JOIN {key} k ON k.id = g.key_id WHERE g.key_id IN %s"
        )
        by_id = {key.pk: key for key in self.keys.values()}
        for row in query(KeyGroup, sql, list(by_id)):
            at = (by_id[row.key_id].name, row.name)
            self.groups[at] = row
            oldest = row.oldest  # type: ignore[attr-defined]
            if oldest is not None:
                self.oldest[at] = as_datetime(KeyGroup, oldest)

    def fold(self, nudges: Sequence[Nudge]) -> None:
        returned: Counter[int] = Counter()
        for nudge in nudges:
            at = (nudge.key, nudge.group)
            if nudge.queued_delta:
                group = self.group(at)
                group.queued += nudge.queued_delta
                self.oldest.setdefault(at, nudge.created_at)
            if nudge.grant_id is not None:
                returned[nudge.grant_id] += nudge.returned
        if returned:
            self.fold_returned(returned)

    def fold_returned(self, returned: Counter[int]) -> None:
        names = {key.pk: key.name for key in self.keys.values()}
        for part in chunks(sorted(returned)):
            for grant in select(Grant, "id IN %s AND key_id IN %s", part, list(names)):
                back = returned.pop(grant.pk)
                held = grant.admitted - grant.released
                if back > held:
                    logger.error("grant %s: %d permits came back, %d were out", grant.uid, back, held)
                    back = held
                grant.released += back
                self.group((names[grant.key_id], grant.group)).admitted -= back
                self.returned.append(grant)
        for grant_id, back in returned.items():
            logger.error("grant row %d does not exist; %d permits that came back are ignored", grant_id, back)

    def group(self, at: tuple[str, str]) -> KeyGroup:
        """The counters of a group, about to be changed."""
        if at not in self.groups:
            self.groups[at] = KeyGroup(key=self.keys[at[0]], name=at[1])
        self.changed.add(at)
        return self.groups[at]

    # ------------------------------------------------------------------------------------------------- the holder

    def ask_holder(self, exchange: Exchange) -> list[_Offer]:
        reports: dict[str, list[GrantReport]] = defaultdict(list)
        names = {key.pk: key.name for key in self.keys.values()}
        for grant in self.returned:
            reports[names[grant.key_id]].append(GrantReport(grant.uid, grant.claimed, grant.released, grant.closed))
        envelopes = []
        for name in sorted(self.keys):
            demand = self.demand_of(name)
            if demand:
                request = PermitRequest(self.conf.client_id, demand, tuple(reports[name]))
                envelopes.append(Envelope(name, request))
            elif reports[name]:
                envelopes.append(Envelope(name, PermitSync(self.conf.client_id, tuple(reports[name]))))
        offers: list[_Offer] = []
        for envelope, reply in zip(envelopes, _answers(exchange, envelopes), strict=True):
            if isinstance(envelope.message, PermitRequest):
                self.take_blocked(envelope.key, reply)
            offers += [
                _Offer(self.keys[envelope.key], offer.group, offer.grant_id, offer.permits) for offer in reply.grants
            ]
        self.write_returned()
        return offers

    def demand_of(self, name: str) -> tuple[GroupDemand, ...]:
        """What waits, as far as one round takes it, and 0 for a group that was refused and waits no more: else the
        holder would still keep a part for it."""
        return tuple(
            GroupDemand(
                group.name, min(max(0, group.queued), PERMITS_PER_ROUND), self.oldest.get((name, group.name), self.now)
            )
            for group in self.groups_of(name)
            if group.queued > 0 or group.blocked_reason
        )

    def groups_of(self, name: str) -> list[KeyGroup]:
        if not self.by_key:
            for at, group in sorted(self.groups.items()):
                self.by_key[at[0]].append(group)
        return self.by_key[name]

    def write_returned(self) -> None:
        """The holder has the reports in this same transaction: what is all back goes, the rest is acknowledged."""
        for grant in self.returned:
            grant.acked_released = grant.released
        delete_by_id(Grant, [grant.pk for grant in self.returned if _is_spent(grant)])
        write_back(Grant, [grant for grant in self.returned if not _is_spent(grant)], ["released", "acked_released"])

    def take_blocked(self, name: str, reply: Reply) -> None:
        reasons = {blocked.group: str(blocked.reason) for blocked in reply.blocked}
        for group in self.groups_of(name):
            reason = reasons.get(group.name, "")
            if reason == BlockedReason.FAIR_SHARE:
                self.short.add(name)  # Whom the permit is kept for may want it no more, and tells nobody.
            if reason != group.blocked_reason:
                group.blocked_reason = reason
                group.blocked_at = self.now if reason else None
                self.changed.add((name, group.name))
                if reason:
                    self.newly_blocked.append((name, group))

    # --------------------------------------------------------------------------------------------------- the items

    def claim(self, offers: list[_Offer], exchange: Exchange) -> None:
        """Admit the oldest items for the permits, and close each grant with what it really got: a row that some
        transaction holds is passed over, and its permit goes back at once."""
        if not offers:
            return
        found = oldest_ids(self.queue, [(offer.key.name, offer.group, offer.permits) for offer in offers])
        for position, _item in found:
            offers[position].got += 1
        self.admitted = [item for _position, item in found]
        if found:
            self.write_grants(offers, found)
        closings: dict[str, list[GrantReport]] = defaultdict(list)
        for offer in offers:
            closings[offer.key.name].append(GrantReport(offer.grant_id, offer.got, 0, closed=True))
            group = self.group((offer.key.name, offer.group))
            group.queued -= offer.got
            group.admitted += offer.got
            if offer.got < offer.permits:
                self.short.add(offer.key.name)
            elif group.queued > 0 and not group.blocked_reason:
                self.more.add(offer.key.name)
        _answers(
            exchange,
            [
                Envelope(name, PermitSync(self.conf.client_id, tuple(reports)))
                for name, reports in sorted(closings.items())
            ],
        )

    def write_grants(self, offers: Sequence[_Offer], found: Sequence[tuple[int, int]]) -> None:
        """Grants, and which of them each item has its permit of: `found` are positions in offers and items."""
        got = [offer for offer in offers if offer.got]
        insert(
            Grant,
            [
                Grant(
                    uid=offer.grant_id,
                    key=offer.key,
                    group=offer.group,
                    permits=offer.got,
                    claimed=offer.got,
                    confirmed=offer.got,
                    admitted=offer.got,
                    closed=True,
                    acked_claimed=offer.got,
                    acked_closed=True,
                    created_at=self.now,
                )
                for offer in got
            ],
        )
        ids: dict[str, int] = {}
        for part in chunks([offer.grant_id for offer in got]):
            ids.update((uid, pk) for pk, uid in select_tuples(Grant, ["id", "uid"], "uid IN %s", part))
        update_each(
            Item,
            "grant_id",
            {item: ids[offers[position].grant_id] for position, item in found},
            f"state = {State.ADMITTED:d}, admitted_at = %s, due_at = %s",
            self.now,
            clock.LONG_AGO,
        )

    # ------------------------------------------------------------------------------------------------- the writing

    def write_groups(self) -> None:
        changed = [self.groups[at] for at in sorted(self.changed)]
        delete_by_id(KeyGroup, [group.pk for group in changed if group.pk and not _counts(group)])
        write_back(
            KeyGroup,
            [group for group in changed if _counts(group)],
            ["queued", "claiming", "admitted", "blocked_reason", "blocked_at"],
            ["key", "name"],
        )

    def write_keys(self) -> None:
        busy = {name for (name, _group), group in self.groups.items() if _counts(group)}
        changed, idle = [], []
        for name, key in self.keys.items():
            was_due = key.due_at is not None and key.due_at <= self.now
            due_at = key.due_at
            if name in self.short:
                due_at = self.now + conf.settings().driver.poll_interval
            elif name in self.more:
                due_at = clock.LONG_AGO
            elif name in busy:
                due_at = None if was_due else due_at
            elif was_due:
                idle.append(key)
                continue
            else:
                due_at = due_at or self.now + conf.IDLE_BEFORE_REMOVAL
            if due_at != key.due_at or key.set_aside_count:
                key.due_at = due_at
                key.set_aside_until, key.set_aside_count, key.error = None, 0, ""
                changed.append(key)
        write_back(Key, changed, ["due_at", "set_aside_until", "set_aside_count", "error"])
        delete_by_id(Key, [key.pk for key in idle])

    # ------------------------------------------------------------------------------------------------ announcements

    def announce_admitted(self) -> None:
        if _driver.get() is None:
            notify(self.queue)
            after_commit(self.send_driver_wanted, using=alias_of(Key))
        if item_admitted.has_listeners(Item):
            after_commit(self.send_admitted, using=alias_of(Key))

    def send_driver_wanted(self) -> None:
        driver_wanted.send_robust(sender=Item, queue=self.queue)

    def send_admitted(self) -> None:
        for part in chunks(self.admitted):
            for uid, key, group, enqueued_at in (
                Item.objects.filter(pk__in=part).order_by("pk").values_list("uid", "key", "group", "enqueued_at")
            ):
                waited = max(timedelta(0), self.now - enqueued_at)
                item_admitted.send_robust(
                    sender=Item,
                    queue=self.queue,
                    id=uid,
                    key=key,
                    group=group,
                    timestamp=self.now,
                    wait_ms=waited // timedelta(milliseconds=1),
                )

    def announce_blocked(self) -> None:
        def send() -> None:
            for key, group in self.newly_blocked:
                item_blocked.send_robust(
                    sender=Item,
                    queue=self.queue,
                    key=key,
                    group=group.name,
                    reason=group.blocked_reason,
                    count=group.queued,
                    timestamp=self.now,
                )

        after_commit(send, using=alias_of(Key))


def _answers(exchange: Exchange, envelopes: Sequence[Envelope]) -> list[Reply]:
    """The replies, in order. Raises the first refusal: the transaction is undone, and its key set aside alone."""
    replies = []
    for answer in exchange(envelopes) if envelopes else []:
        if isinstance(answer, (TransportError, HolderRefused)):
            raise answer
        replies.append(answer)
    return replies


def _counts(group: KeyGroup) -> bool:
    return bool(group.queued or group.claiming or group.admitted)


def _is_spent(grant: Grant) -> bool:
    return grant.closed and grant.released == grant.permits and grant.acked_closed
