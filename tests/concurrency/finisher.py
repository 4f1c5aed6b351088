"""A process that enqueues, and releases one admitted item after the other: with its like it must finish everything.

Nothing is handed over and no driver runs. Arguments: name, seconds without any movement after which it gives up, and
for each key, one after the other, `key=items to enqueue`.
"""

import random
import sys
import time

import django

django.setup()

from django_semq import enqueue, release  # noqa: E402
from django_semq.models import Item, State  # noqa: E402


def finish(key: str, name: str, number: int, patience: float) -> int:
    """Take part until everything of this key is done. Returns how many items were released here."""
    made = released = 0
    moved_at = time.monotonic()
    while True:
        if made < number and random.random() < 0.5:
            enqueue(key, None, id=f"{key}-{name}-{made}")
            made += 1
            moved_at = time.monotonic()
            continue
        admitted = list(Item.objects.filter(key=key, state=State.ADMITTED).values_list("uid", flat=True)[:20])
        if admitted and release(random.choice(admitted)):
            released += 1
            moved_at = time.monotonic()
        elif made == number and not Item.objects.filter(key=key).exists():
            return released
        elif not admitted:
            if time.monotonic() - moved_at > patience:
                sys.exit(f"stuck: {Item.objects.filter(key=key).count()} items wait at {key} and none is admitted")
            time.sleep(random.uniform(0, 0.02))


if __name__ == "__main__":
    _program, name, patience, *keys = sys.argv
    for key, _equals, number in (each.partition("=") for each in keys):
        print(f"{key} released {finish(key, name, int(number), float(patience))}")
