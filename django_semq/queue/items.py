"""The callers' verbs. They write rows of their own and lock nothing that is shared.

Each verb is all or nothing, joins the caller's transaction and rolls back with it, and leaves a nudge for the
pump in the same transaction. After the commit one hook pumps the keys; if it cannot, the driver does.
"""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol
from weakref import WeakKeyDictionary, WeakSet

from asgiref.sync import sync_to_async
from django.db import IntegrityError, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Case, Exists, OuterRef, Subquery, Sum, Value, When
from django.dispatch import Signal

from django_semq import clock, conf
from django_semq.exceptions import InvalidItem, TasksOnly
from django_semq.locking import after_commit, delete_by_id, join, lock_by_id, lock_items
from django_semq.models import Item, Key, KeyGroup, Nudge, State
from django_semq.protocol.names import name_problem, shown
from django_semq.queue.pump import pump_for_caller
from django_semq.rows import CHUNK, alias_of, chunks, insert, select_tuples
from django_semq.signals import item_cancelled, item_queued, item_released

MAX_DEPTH = 100
"""Levels of lists and dicts in a body: far below what the JSON readers of all languages take."""

TAKEN = ("uid", "key", "group", "grant_id", "lease_id", "attempt")
"""What has to be known of an item that is released or cancelled."""

SET_ASIDE = "set_aside"
"""The reason why items of a key wait that the pump cannot count: its error is on the key's row."""

STATEMENT_CHARACTERS = 2**20
"""Of the bodies in one insert: 8 MiB at most, once encoded and escaped; the smallest default packet takes 16."""

FIELDS = ("key", "body", "group", "id")


@dataclass(frozen=True, slots=True)
class Enqueued:
    """What became of one item."""

    id: str
    created: bool
    """False: an item of this id is stored already; nothing of it was changed."""


@dataclass(frozen=True, slots=True)
class EnqueueResult:
    """What became of several items."""

    queued: list[str]
    duplicates: list[str]
    """Ids that were stored already, or came twice in one call. Both lists are in input order."""


@dataclass(frozen=True, slots=True)
class ItemStatus:
    """Where an item stands."""

    state: str
    """"queued", "claiming" or "admitted"."""
    enqueued_at: datetime
    admitted_at: datetime | None
    blocked: str | None
    """Why it waits, while it is queued: what the holder said last, or "set_aside" for a key that fails."""


@dataclass(frozen=True, slots=True)
class _NewItem:
    key: str
    body: str
    group: str
    id: str
    is_id_given: bool


class _Row(Protocol):
    uid: str
    key: str
    group: str


class Queue:
    """One queue of the project: `django_semq.queues[alias]`. The functions of `django_semq` are the default's."""

    def __init__(self, alias: str) -> None:
        self._alias = alias

    @property
    def alias(self) -> str:
        """Raises `UnknownQueue` if the settings do not know it."""
        return conf.queue(self._alias).alias

    def enqueue(self, key: str, body: Any, *, group: str = "", id: str | None = None) -> Enqueued:
        """Store one item that waits for a permit of the key.

        Part of the caller's transaction. An id that is stored already is left as it is; without one a random id
        is made. Raises `InvalidItem`, and `TasksOnly` on a queue without ADMIT, with nothing stored.
        """
        self._refuse_if_tasks()
        return self.put(key, body, group=group, id=id)

    def put(self, key: str, body: Any, *, group: str = "", id: str | None = None) -> Enqueued:
        """`enqueue`, whoever hands over; on a queue of tasks, only `async_task` may say what the body is."""
        item = self._checked({"key": key, "body": body, "group": group, "id": id}, None)
        return Enqueued(item.id, bool(self._store([item]).queued))

    def enqueue_many(self, items: Iterable[Mapping[str, Any]]) -> EnqueueResult:
        """Store items, given as dicts with `key` and `body` and perhaps `group` and `id`, in this order.

        All are checked first: one that is wrong raises `InvalidItem` with its `index`, and nothing is stored.
        """
        self._refuse_if_tasks()
        return self._store([self._checked(item, index) for index, item in enumerate(items)])

    def release(self, id: str) -> bool:
        """Give the permit of an admitted item back; the item is gone. False if there is none: twice is safe.

        No hand-over of it begins after True; one that is under way may still arrive.
        """
        return bool(self.release_many([id]))

    def release_many(self, ids: Iterable[str]) -> list[str]:
        """Release admitted items; returns the ids that were, in input order. Others are passed over."""
        wanted = _distinct(ids)
        gone = set(self._take(lambda: lock_items(self.alias, wanted, State.ADMITTED, TAKEN), _returned, item_released))
        return [uid for uid in wanted if uid in gone]

    def release_rows(self, rows: Mapping[int, int]) -> list[str]:
        """Release admitted items by row number and attempt: an id may belong to another item by now."""

        def lock() -> list[Item]:
            items = lock_by_id(Item, sorted(rows), TAKEN, queue=self.alias, state=State.ADMITTED)
            return [item for item in items if item.attempt == rows[item.pk]]

        return self._take(lock, _returned, item_released)

    def cancel(self, id: str) -> bool:
        """Remove a queued item. False once it is claimed or admitted, or unknown: twice is safe."""
        return bool(self.cancel_many([id]))

    def cancel_many(self, ids: Iterable[str]) -> list[str]:
        """Cancel queued items; returns the ids that were, in input order. Others are passed over."""
        wanted = _distinct(ids)
        gone = set(self._take(lambda: lock_items(self.alias, wanted, State.QUEUED, TAKEN), _withdrawn, item_cancelled))
        return [uid for uid in wanted if uid in gone]

    def status(self, id: str) -> ItemStatus | None:
        """Where an item stands; None if no item of this id is stored."""
        if name_problem(id) is not None:
            return None
        reason = KeyGroup.objects.filter(
            key__queue=self.alias, key__name=OuterRef("key"), name=OuterRef("group")
        ).values("blocked_reason")
        set_aside = Key.objects.filter(queue=self.alias, name=OuterRef("key"), set_aside_until__gt=clock.now())
        found = (
            Item.objects.filter(queue=self.alias, uid=id)
            .annotate(reason=Case(When(Exists(set_aside), then=Value(SET_ASIDE)), default=Subquery(reason)))
            .values_list("state", "enqueued_at", "admitted_at", "reason")
        )
        # Not `first()`, whose order by the primary key is a plan in itself: a walk over all older items.
        if not found:
            return None
        state, enqueued_at, admitted_at, blocked = found[0]
        is_queued = state == State.QUEUED
        return ItemStatus(
            state=State(state).name.lower(),
            enqueued_at=enqueued_at,
            admitted_at=(admitted_at or enqueued_at) if state == State.ADMITTED else None,
            blocked=(blocked or None) if is_queued else None,
        )

    def usage(self) -> dict[str, int]:
        """How many items are queued, claiming and admitted: the counters and what is not folded into them yet, in
        one statement."""
        folded = (
            KeyGroup.objects.filter(key__queue=self.alias)
            .values("key__queue")
            .annotate(queued=Sum("queued"), claiming=Sum("claiming"), admitted=Sum("admitted"))
            .values_list("queued", "claiming", "admitted")
        )
        unfolded = (
            Nudge.objects.filter(queue=self.alias)
            .values("queue")
            .annotate(queued=Sum("queued_delta"), claiming=Value(0), admitted=-Sum("returned"))
            .values_list("queued", "claiming", "admitted")
        )
        total: Counter[str] = Counter(queued=0, claiming=0, admitted=0)
        for queued, claiming, admitted in folded.union(unfolded, all=True):
            total.update(queued=int(queued), claiming=int(claiming), admitted=int(admitted))
        return dict(total)

    async def aenqueue(self, key: str, body: Any, *, group: str = "", id: str | None = None) -> Enqueued:
        """`enqueue` for async code."""
        return await sync_to_async(self.enqueue)(key, body, group=group, id=id)

    async def aenqueue_many(self, items: Iterable[Mapping[str, Any]]) -> EnqueueResult:
        """`enqueue_many` for async code."""
        return await sync_to_async(self.enqueue_many)(items)

    async def arelease(self, id: str) -> bool:
        """`release` for async code."""
        return await sync_to_async(self.release)(id)

    async def arelease_many(self, ids: Iterable[str]) -> list[str]:
        """`release_many` for async code."""
        return await sync_to_async(self.release_many)(ids)

    async def acancel(self, id: str) -> bool:
        """`cancel` for async code."""
        return await sync_to_async(self.cancel)(id)

    async def acancel_many(self, ids: Iterable[str]) -> list[str]:
        """`cancel_many` for async code."""
        return await sync_to_async(self.cancel_many)(ids)

    async def astatus(self, id: str) -> ItemStatus | None:
        """`status` for async code."""
        return await sync_to_async(self.status)(id)

    async def ausage(self) -> dict[str, int]:
        """`usage` for async code."""
        return await sync_to_async(self.usage)()

    # --------------------------------------------------------------------------------------------------- internals

    def _refuse_if_tasks(self) -> None:
        """The body of a task names the function to run: it must never come from outside."""
        if conf.queue(self.alias).admit == conf.TASK_ADMIT:
            raise TasksOnly(
                f"queue {self.alias!r} has no ADMIT, so its items are tasks: call async_task(),"
                f" or name an ADMIT in SEMQ['QUEUES'][{self.alias!r}]"
            )

    def _store(self, items: Sequence[_NewItem]) -> EnqueueResult:
        now = clock.now()
        first = {item.id: item for item in reversed(items)}
        distinct = [item for item in items if first.pop(item.id, None) is not None]

        def store(refuses: bool) -> list[_NewItem]:
            known = self._known([item.id for item in distinct if item.is_id_given])
            new = [item for item in distinct if item.id not in known]
            batch = uuid.uuid4() if refuses else None
            rows = [
                Item(
                    uid=item.id,
                    queue=self.alias,
                    key=item.key,
                    group=item.group,
                    body=item.body,
                    enqueued_at=now,
                    batch=batch,
                )
                for item in new
            ]
            for part in _by_size(rows):
                if refuses:
                    Item.objects.bulk_create(part, batch_size=CHUNK, ignore_conflicts=True)
                else:
                    insert(Item, part)
            if refuses:
                stored = {
                    uid
                    for ids in chunks([item.id for item in new])
                    for (uid,) in select_tuples(
                        Item, ["uid"], "queue = %s AND uid IN %s AND batch = %s", self.alias, ids, batch
                    )
                }
                new = [item for item in new if item.id in stored]
            counts = Counter((item.key, item.group) for item in new)
            self._nudge([Nudge(key=key, group=group, queued_delta=n) for (key, group), n in counts.items()], now)
            self._after_commit([(item.id, item.key, item.group) for item in new], list(dict(counts)), item_queued, now)
            return new

        try:
            new = join(lambda: store(refuses=False), using=alias_of(Item))
        except IntegrityError:
            # Another caller stored one of the ids since we looked: take what the database refuses for a duplicate.
            new = join(lambda: store(refuses=True), using=alias_of(Item))
        stored = {item.id for item in new}
        result = EnqueueResult([], [])
        for item in items:
            (result.queued if item.id in stored else result.duplicates).append(item.id)
            stored.discard(item.id)
        return result

    def _known(self, ids: Sequence[str]) -> set[str]:
        condition = "queue = %s AND uid IN %s"
        return {uid for part in chunks(ids) for (uid,) in select_tuples(Item, ["uid"], condition, self.alias, part)}

    def _take(
        self, lock: Callable[[], list[Item]], nudge: Callable[[Item], tuple[Any, ...]], signal: Signal
    ) -> list[str]:
        """Delete the rows that `lock` finds and say what that changes."""
        now = clock.now()

        def take() -> list[str]:
            items = lock()
            delete_by_id(Item, [item.pk for item in items])
            changes = Counter((item.key, item.group, *nudge(item)) for item in items)
            self._nudge(
                [
                    Nudge(
                        key=key,
                        group=group,
                        queued_delta=0 if is_back else -n,
                        returned=n if is_back else 0,
                        grant_id=grant_id,
                        lease_id=lease_id,
                    )
                    for (key, group, is_back, grant_id, lease_id), n in changes.items()
                ],
                now,
            )
            self._after_commit([(item.uid, item.key, item.group) for item in items], list(changes), signal, now)
            return [item.uid for item in items]

        return join(take, using=alias_of(Item))

    def _nudge(self, nudges: Sequence[Nudge], now: datetime) -> None:
        for nudge in nudges:
            nudge.queue = self.alias
            nudge.created_at = now
        insert(Nudge, nudges)

    def _after_commit(
        self,
        items: Sequence[tuple[str, str, str]],
        changed: Sequence[tuple[Any, ...]],
        signal: Signal,
        now: datetime,
    ) -> None:
        if not items:
            return
        using = alias_of(Item)
        pump = _Pump(connections[using], {(self.alias, at[0]) for at in changed})

        def hook() -> None:
            pump.run()
            if signal.has_listeners(Item):
                for uid, key, group in items:
                    signal.send_robust(sender=Item, queue=self.alias, id=uid, key=key, group=group, timestamp=now)

        after_commit(hook, using=using)

    def _checked(self, given: Mapping[str, Any], index: int | None) -> _NewItem:
        if not isinstance(given, Mapping):
            raise InvalidItem(f"an item is {shown(given)}; give a dict", field="", index=index)
        for name in given:
            if name not in FIELDS:
                text = f"an item has no field {shown(name)}; it has {', '.join(FIELDS)}"
                raise InvalidItem(text, field=str(name), index=index)
        for name in ("key", "body"):
            if name not in given:
                raise InvalidItem(f"{name} is missing; give one", field=name, index=index)
        uid = given.get("id")
        group = given.get("group", "")
        names = {"key": given["key"], "group": group, **({} if uid is None else {"id": uid})}
        for name, value in names.items():
            if problem := name_problem(value, blank=name == "group"):
                raise InvalidItem(f"{name} is {shown(value)}: {problem}", field=name, index=index)
        return _NewItem(
            key=given["key"],
            body=encode_body(given["body"], conf.queue(self.alias).max_body_bytes, index),
            group=group,
            id=uuid.uuid4().hex if uid is None else uid,
            is_id_given=uid is not None,
        )


class Queues:
    """The project's queues by alias."""

    def __getitem__(self, alias: str) -> Queue:
        """Raises `UnknownQueue`."""
        return Queue(conf.queue(alias).alias)

    def __iter__(self) -> Iterator[str]:
        return iter(conf.settings().queues)


queues: Queues = Queues()
default: Queue = Queue("default")


def encode_body(body: Any, max_bytes: int, index: int | None = None) -> str:
    """The body as JSON text. Raises `InvalidItem` for anything that JSON would change or cannot hold."""

    def refuse(text: str) -> InvalidItem:
        return InvalidItem(f"body is {shown(body)}: {text}", field="body", index=index)

    problem = _json_problem(body, MAX_DEPTH)
    if problem is not None:
        raise refuse(problem)
    try:
        text = json.dumps(body, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
        size = len(text.encode())
    except UnicodeEncodeError:
        raise refuse("it has half of a surrogate pair; give well-formed Unicode") from None
    except ValueError:
        raise refuse(
            "it has a number that JSON cannot hold (NaN, infinity, thousands of digits); give null or a text"
        ) from None
    if size > max_bytes:
        raise refuse(f"it has {size} bytes of JSON, MAX_BODY_BYTES is {max_bytes}; store it elsewhere and name it")
    return text


def _json_problem(value: Any, depth: int) -> str | None:
    """Why a value is not JSON, or None. Walks itself: `json` turns keys into text and has no bound on depth."""
    if value is None or isinstance(value, (str, bool, int, float)):
        return None
    if isinstance(value, (dict, list, tuple)):
        if depth == 0:
            return f"it is nested deeper than {MAX_DEPTH} levels; flatten it"
        if isinstance(value, dict):
            for key in value:
                if not isinstance(key, str):
                    return f"it has the key {shown(key)}; keys of JSON objects are text"
        for inner in value.values() if isinstance(value, dict) else value:
            if problem := _json_problem(inner, depth - 1):
                return problem
        return None
    return f"it has a {type(value).__name__}, which JSON has not; give text, numbers, lists and dicts"


def _by_size(rows: Sequence[Item]) -> Iterator[list[Item]]:
    """Rows whose bodies go into one statement: MySQL and MariaDB refuse one that is longer than a packet."""
    part: list[Item] = []
    size = 0
    for row in rows:
        if part and size + len(row.body) > STATEMENT_CHARACTERS:
            yield part
            part, size = [], 0
        part.append(row)
        size += len(row.body)
    if part:
        yield part


def _distinct(ids: Iterable[str]) -> list[str]:
    """Ids that can be stored at all, each once: no other can belong to an item."""
    if isinstance(ids, str):
        raise InvalidItem(f"ids is {shown(ids)}, a single text; give a list of ids", field="ids")
    return list(dict.fromkeys(uid for uid in ids if name_problem(uid) is None))


def _returned(item: Item) -> tuple[bool, int | None, int | None]:
    return (True, item.grant_id, item.lease_id)


def _withdrawn(item: Item) -> tuple[bool, None, None]:
    return (False, None, None)


class _Pump:
    """What one call asks to be pumped after the commit. The first hook that runs pumps for all that are still there:
    one hook for the whole transaction would vanish with a rolled-back savepoint, and the others' wake-up with it."""

    _waiting: WeakKeyDictionary[BaseDatabaseWrapper, WeakSet[_Pump]] = WeakKeyDictionary()
    """Only Django's list of hooks holds a pump for good, so what is rolled back goes from here too."""

    def __init__(self, connection: BaseDatabaseWrapper, keys: set[tuple[str, str]]) -> None:
        self.connection = connection
        self.keys = keys
        self._waiting.setdefault(connection, WeakSet()).add(self)

    def run(self) -> None:
        by_queue: dict[str, list[str]] = {}
        waiting = self._waiting.pop(self.connection, ())
        for queue, key in sorted({at for pump in waiting for at in pump.keys}):
            by_queue.setdefault(queue, []).append(key)
        for queue, keys in by_queue.items():
            pump_for_caller(queue, keys)
