"""A process that does what a test tells it, one order a line, and stops where the order says.

An order is JSON: `calls`, a list of [verb, argument, ...]; `atomic`: all in one transaction of the caller;
`stop`: before the n-th statement, or the first that holds this text; `holds`: before the end of that transaction;
`undoes`: it ends with a rollback. The process prints each step with the order's number, and goes on from a stop
when it reads a line.
"""

import json
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import django

django.setup()

from django.db import connection, transaction  # noqa: E402
from django.db.models import ProtectedError  # noqa: E402
from django.db.models.signals import post_delete, pre_delete  # noqa: E402
from django.test.utils import override_settings  # noqa: E402

from django_semq import clock, invariants, queues, semaphores  # noqa: E402
from django_semq.holder.sweep import remove_idle  # noqa: E402
from django_semq.models import Item  # noqa: E402
from django_semq.queue import admission  # noqa: E402
from django_semq.queue.pump import pump  # noqa: E402


def configure(semq: dict) -> None:
    """The settings of the test that gives the orders from now on."""
    override_settings(SEMQ=semq).enable()


def enqueue(queue: str, key: str, *ids: str) -> list[str]:
    return queues[queue].enqueue_many([{"key": key, "body": None, "id": uid} for uid in ids]).queued


def delete(uid: str) -> bool:
    """As the admin does, and any code of the project."""
    try:
        return bool(Item.objects.filter(uid=uid).delete()[0])
    except ProtectedError:
        return False


def claim(queue: str) -> list[str]:
    batches = admission.claim(queue, now=clock.now(), without=(), calls=4)
    return [item.id for batch in batches for item in batch.items]


def mark(queue: str, row: int, attempt: int) -> bool:
    """Record that the hand-over of an item has succeeded."""
    return admission.succeeded(admission.HandOver(queue, [], {row: attempt}, is_alone=False), now=clock.now())


def undone_then(queue: str, key: str, undone: str, kept: str) -> None:
    """An enqueue in a savepoint that rolls back, before one that stays."""
    with transaction.atomic():
        with suppress(ZeroDivisionError), transaction.atomic():
            queues[queue].enqueue(key, None, id=undone)
            raise ZeroDivisionError
        queues[queue].enqueue(key, None, id=kept)


VERBS = {
    "configure": configure,
    "undone_then": undone_then,
    "enqueue": enqueue,
    "release": lambda queue, uid: queues[queue].release(uid),
    "finish": lambda queue, row, attempt: queues[queue].release_rows({row: attempt}),
    "cancel": lambda queue, uid: queues[queue].cancel(uid),
    "pump": lambda queue, *keys: pump(queue, keys, now=clock.now()).admitted,
    "delete": delete,
    "claim": claim,
    "mark": mark,
    "set_limit": semaphores.set_limit,
    "resume": semaphores.resume,
    "repair": lambda: invariants.repair(invariants.audit(), now=clock.now()),
    "sweep": lambda: remove_idle(clock.now()),
}


def main() -> None:
    # With a receiver, Django's own delete() reads the rows, locks them and deletes by lists of ids.
    for signal in (pre_delete, post_delete):
        signal.connect(lambda **kwargs: None, weak=False)
    for line in iter(sys.stdin.readline, ""):
        order = json.loads(line)
        say = partial(print, f"#{order['number']}")
        try:
            say("done", json.dumps(obey(order, say)))
        except Exception:
            say("failed", json.dumps(traceback.format_exc()))


def obey(order: dict, say: Any) -> list:
    with stopped_before(order["stop"], say):
        if not order["atomic"]:
            return [VERBS[verb](*arguments) for verb, *arguments in order["calls"]]
        with transaction.atomic():
            results = [VERBS[verb](*arguments) for verb, *arguments in order["calls"]]
            if order["holds"]:
                stand(say, "holds")
            transaction.set_rollback(order["undoes"])
            return results


@contextmanager
def stopped_before(stop: int | str | None, say: Any) -> Iterator[None]:
    passed = 0

    def count(execute, sql, params, many, context):
        nonlocal passed, stop
        passed += 1
        if stop == passed or (isinstance(stop, str) and stop in sql):
            stop = None
            where = "inside" if connection.in_atomic_block else "outside"
            stand(say, f"stopped {where} a transaction before {' '.join(sql.split())[:300]}")
        return execute(sql, params, many, context)

    with connection.execute_wrapper(count):
        yield


def stand(say: Any, what: str) -> None:
    say(what)
    sys.stdin.readline()


if __name__ == "__main__":
    main()
