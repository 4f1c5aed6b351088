"""A process of the application: it enqueues, ends what was handed over, and releases.

It begins at the first line it reads and ends at the second. Arguments: its name, how many items it enqueues, how
many it takes at a time (0: none), the longest pause between two calls, the longest time of work. Which keys and
groups: SEMQ_TEST_KEYS, a list of [key, group, weight].
"""

import json
import os
import random
import select
import sys
import time
from collections.abc import Callable

import django

django.setup()

from django.db import DEFAULT_DB_ALIAS, Error, connections, transaction  # noqa: E402

from django_semq import enqueue, enqueue_many, release_many  # noqa: E402
from tests.concurrency.work import FOLDER, Spool, Work, observer  # noqa: E402

LARGEST_CALL = 10
IDLE = 0.02
"""Seconds between two looks for work."""


def main(name: str, number: int, largest_take: int, longest_pause: float, longest_work: float) -> None:
    places = json.loads(os.environ["SEMQ_TEST_KEYS"])
    weights = [weight for _key, _group, weight in places]
    spool = Spool(FOLDER)
    made = 0
    os.nice(10)  # Twenty of us must not take the processors from the drivers, which no project would allow.
    print("ready")
    sys.stdin.readline()
    while True:
        if made < number and random.random() < 0.5:
            wanted = random.choices(places, weights, k=random.randint(1, min(LARGEST_CALL, number - made)))
            ask([Work(f"{name}-{made + index}", key, group) for index, (key, group, _weight) in enumerate(wanted)])
            made += len(wanted)
            time.sleep(random.uniform(0, longest_pause))
        elif works := [
            work for _try in range(random.randint(min(1, largest_take), largest_take)) if (work := spool.take())
        ]:
            time.sleep(random.uniform(0, longest_work))
            give_back(works, spool)
        elif is_told_to_stop(within=IDLE):
            return


def ask(items: list[Work]) -> None:
    """Enqueue them, one way or the other."""
    for item in items:
        observer.note("enqueuing", item.key, item.group, item.item)
    is_many = random.random() < 0.5

    def store() -> None:
        for item in items:
            in_time("queued", item)
        if is_many:
            enqueue_many({"key": item.key, "group": item.group, "id": item.item, "body": None} for item in items)
        else:
            for item in items:
                enqueue(item.key, None, group=item.group, id=item.item)

    insist(store)


def insist(work: Callable[[], None]) -> None:
    """Do it in a transaction; where the database fails, again with the same ids, as it may have been done."""
    while True:
        try:
            with transaction.atomic():
                return work()
        except Error as error:
            print("again after", repr(error))
            # Where set_autocommit() met a server that was gone, Django takes the connection for one inside a
            # transaction, for good.
            connections.close_all()
            del connections[DEFAULT_DB_ALIAS]
            time.sleep(0.1)


def in_time(what: str, item: Work) -> None:
    """Its entry is of the moment of the commit: before the pump of the hook that follows."""
    transaction.on_commit(lambda: observer.note(what, item.key, item.group, item.item))


def give_back(works: list[Work], spool: Spool) -> None:
    for work in works:
        observer.note("end", work.key, work.group, work.item)
        spool.done(work)

    def release() -> None:
        for work in works:
            in_time("released", work)
        release_many([work.item for work in works])

    insist(release)


def is_told_to_stop(within: float) -> bool:
    return bool(select.select([sys.stdin], [], [], within)[0])


if __name__ == "__main__":
    _program, name, number, largest_take, longest_pause, longest_work = sys.argv
    main(name, int(number), int(largest_take), float(longest_pause), float(longest_work))
