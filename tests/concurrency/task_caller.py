"""A process that enqueues tasks, from the first line it reads to the second. Arguments: its name, the longest pause."""

import random
import sys
from itertools import count

import django

django.setup()

from django_semq import async_task  # noqa: E402
from tests.concurrency.work import observer  # noqa: E402
from tests.concurrency.worker import is_told_to_stop  # noqa: E402

KEYS = 4
LONGEST_TASK = 0.4


def main(name: str, longest_pause: float) -> None:
    print("ready")
    sys.stdin.readline()
    for number in count():
        item, key = f"{name}-{number}", f"key-{random.randrange(KEYS)}"
        observer.note("enqueuing", key, "", item)
        async_task("tests.concurrency.work.task", item, key, random.uniform(0, LONGEST_TASK), key=key, id=item)
        observer.note("queued", key, "", item)
        if is_told_to_stop(random.uniform(0, longest_pause)):
            return


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
