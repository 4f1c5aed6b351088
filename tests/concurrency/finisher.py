"""A process that enqueues, and releases one admitted item after the other: with its like it must finish everything.

Nothing is handed over and no driver runs. Arguments: name, items to enqueue, seconds without any movement after
which it gives up.
"""

import random
import sys
import time

import django

django.setup()

from django_semq import enqueue, release  # noqa: E402
from django_semq.models import Item, State  # noqa: E402

KEY = "key"


def main(name: str, number: int, patience: float) -> None:
    made = released = 0
    moved_at = time.monotonic()
    while True:
        if made < number and random.random() < 0.5:
            enqueue(KEY, None, id=f"{name}-{made}")
            made += 1
            moved_at = time.monotonic()
            continue
        admitted = list(Item.objects.filter(state=State.ADMITTED).values_list("uid", flat=True)[:20])
        if admitted and release(random.choice(admitted)):
            released += 1
            moved_at = time.monotonic()
        elif made == number and not Item.objects.exists():
            break
        elif not admitted:
            if time.monotonic() - moved_at > patience:
                sys.exit(f"stuck: {Item.objects.count()} items wait and none is admitted")
            time.sleep(random.uniform(0, 0.02))
    print(f"released {released}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
