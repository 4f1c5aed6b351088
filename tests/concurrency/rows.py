"""Rows as a caller makes them, and as a test looks at them."""

from django_semq import clock, enqueue, queues, release
from django_semq.models import IssuedGrant, Item, Semaphore, State
from django_semq.queue.pump import driven_by, pump


def enqueue_only(key: str, *ids: str) -> None:
    """Commit, and leave the pump to others."""
    with driven_by(lambda: None):
        for uid in ids:
            enqueue(key, None, id=uid)


def enqueue_all(**keys: list[str]) -> None:
    """Everything at once, by keys, and one pump for all."""
    queues["default"].enqueue_many({"key": key, "body": None, "id": uid} for key, ids in keys.items() for uid in ids)


def make_idle(*keys: str) -> None:
    """Semaphores that a sweep removes: something ran once, long ago."""
    for key in keys:
        enqueue(key, None, id=f"{key} ran")
        release(f"{key} ran")
    Semaphore.objects.filter(name__in=keys).update(idle_since=clock.LONG_AGO)


def state(uid: str, queue: str = "default") -> str:
    found = Item.objects.filter(queue=queue, uid=uid).values_list("state", flat=True).first()
    return "gone" if found is None else State(found).name.lower()


def footprint(key: str) -> int:
    return sum(grant.permits - grant.released for grant in IssuedGrant.objects.filter(semaphore__name=key))


def drive(key: str, *aliases: str) -> None:
    """The driver's part: a caller does not wait for a key that another queue or an operator has at the holder."""
    for alias in aliases or ["default"]:
        pump(alias, [key], now=clock.now())
