"""Rows as a caller makes them, and as a test looks at them."""

from django_semq import enqueue, queues
from django_semq.models import IssuedGrant, Item, State
from django_semq.queue.pump import driven_by


def enqueue_only(key: str, *ids: str) -> None:
    """Commit, and leave the pump to others."""
    with driven_by(lambda: None):
        for uid in ids:
            enqueue(key, None, id=uid)


def enqueue_all(**keys: list[str]) -> None:
    """Everything at once, by keys, and one pump for all."""
    queues["default"].enqueue_many({"key": key, "body": None, "id": uid} for key, ids in keys.items() for uid in ids)


def state(uid: str, queue: str = "default") -> str:
    found = Item.objects.filter(queue=queue, uid=uid).values_list("state", flat=True).first()
    return "gone" if found is None else State(found).name.lower()


def footprint(key: str) -> int:
    return sum(grant.permits - grant.released for grant in IssuedGrant.objects.filter(semaphore__name=key))
