"""What this project does with permits: the handlers that SEMQ names in the settings, and a task."""

import random
import uuid
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from django.db import connections

from django_semq import async_task, release
from django_semq.queue.admission import AdmittedItem
from example_project.provider import remote
from example_project.provider.models import Call

REPORT = "example_project.provider.jobs.report"

waiting = ThreadPoolExecutor(max_workers=16, thread_name_prefix="provider-call")


def admit(items: Sequence[AdmittedItem]) -> None:
    """Begin the provider's call of each item and come back at once; its permit goes back when the call has ended.

    It may be asked again for an item, after a crash or a refusal. The id is the call's reference, so the provider
    takes the second time for the first.
    """
    for item in items:
        call = remote.start(item.id, account=item.key, kind=item.group, pages=item.body["pages"])
        waiting.submit(release_when_ended, item.id, call)


def release_when_ended(id: str, call: Call) -> None:
    remote.wait(call)
    try:
        release(id)
    finally:
        connections.close_all()  # Those of this thread of the pool.


def finished(ids: Sequence[str]) -> list[str]:
    """Which of these items are done: the process that began their calls may not have lived to release them."""
    return remote.ended(ids)


def enqueue_reports(accounts: Iterable[str], count: int) -> list[str]:
    """The other way to use a permit: a function that runs as a django-q2 task once it has one. Returns the ids."""
    ids = []
    for account in accounts:
        for _ in range(count):
            id = uuid.uuid4().hex
            pages = random.randint(1, 5)
            async_task(REPORT, id, account, pages, key=account, group="reports", id=id, queue="tasks")
            ids.append(id)
    return ids


def report(reference: str, account: str, pages: int) -> None:
    """Has its permit until it returns, and gives nothing back by itself."""
    remote.wait(remote.start(reference, account=account, kind="reports", pages=pages))
