"""Work for the example, so that there is something to see."""

import random

from django.db import transaction

from django_semq import enqueue_many, usage
from example_project.provider.jobs import enqueue_reports

ACCOUNTS = ("acct-oslo", "acct-lima", "acct-kyoto")
WAITING = 15
"""Items of an account that shall wait at least: some seconds of work."""
BATCH = ("", "", "", "exports") * 6
REPORTS = 3


def top_up() -> None:
    """Enqueue another batch for each account when the last one is nearly done."""
    if usage()["queued"] >= WAITING * len(ACCOUNTS):
        return
    with transaction.atomic():
        enqueue_many(
            {"key": account, "group": group, "body": {"pages": random.randint(1, 5)}}
            for group in BATCH
            for account in ACCOUNTS
        )
        enqueue_reports(ACCOUNTS, REPORTS)
