"""The pretend provider: stands for somebody else's HTTP API.

It takes so many calls at once for an account, and refuses one more, its "429 Too Many Requests". A call goes on for
a moment, whatever becomes of the process that began it. Its reference makes it safe to begin it twice.
"""

import time
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta

from django.db import transaction
from django.utils import timezone

from example_project.provider.models import Account, Call

AT_ONCE = 4
AT_ONCE_OF_KIND = {"exports": 1}
TIME_OF_A_PAGE = timedelta(seconds=0.2)


class TooManyCalls(Exception):
    """429: the account has as many calls under way as it may have."""


def start(reference: str, *, account: str, kind: str, pages: int) -> Call:
    """Begin a call. Raises `TooManyCalls`, and remembers that it had to."""
    Account.objects.get_or_create(name=account)
    with transaction.atomic():
        # Under this lock the count is exact, however many processes call.
        row = Account.objects.select_for_update().get(name=account)
        if call := Call.objects.filter(reference=reference).first():
            return call
        now = timezone.now()
        under_way = Counter(Call.objects.filter(account=row, ends_at__gt=now).values_list("kind", flat=True))
        row.peak = max(row.peak, under_way.total() + 1)
        if under_way.total() < AT_ONCE and under_way[kind] < AT_ONCE_OF_KIND.get(kind, AT_ONCE):
            call = Call.objects.create(
                account=row, kind=kind, reference=reference, ends_at=now + pages * TIME_OF_A_PAGE
            )
            row.calls += 1
        else:
            row.refusals += 1
        row.save()
    if call is None:  # Raised in the transaction, it would take the count of it back.
        raise TooManyCalls(
            f"429: {account} has {under_way.total()} calls under way, so many of a kind: {dict(under_way)}"
        )
    return call


def wait(call: Call) -> None:
    """Until the call has ended."""
    while (left := call.ends_at - timezone.now()) > timedelta():
        time.sleep(left.total_seconds())


def ended(references: Sequence[str]) -> list[str]:
    """Which of these calls have ended."""
    calls = Call.objects.filter(reference__in=references, ends_at__lte=timezone.now())
    return list(calls.values_list("reference", flat=True))
