"""What waits, what runs and why the rest does not."""

from __future__ import annotations

import json
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from django_semq.models import KeyGroup
from django_semq.queue.items import queues

COLUMNS = ("queue", "key", "group", "queued", "claiming", "admitted", "blocked")


class Command(BaseCommand):
    help = "Print a table of what is queued, claimed and admitted by queue, key and group."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--json", action="store_true")

    def handle(self, *args: Any, **options: Any) -> None:
        groups = [
            dict(zip(COLUMNS, row, strict=True))
            for row in KeyGroup.objects.order_by("key__queue", "key__name", "name").values_list(
                "key__queue", "key__name", "name", "queued", "claiming", "admitted", "blocked_reason"
            )
        ]
        totals = {alias: queues[alias].usage() for alias in queues}
        if options["json"]:
            self.stdout.write(json.dumps({"queues": totals, "groups": groups}))
            return
        for alias, usage in totals.items():
            self.stdout.write(f"{alias}: " + ", ".join(f"{number} {state}" for state, number in usage.items()))
        self._table([COLUMNS, *(tuple(str(row[column]) for column in COLUMNS) for row in groups)])

    def _table(self, rows: list[tuple[str, ...]]) -> None:
        widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
        for row in rows:
            line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            self.stdout.write(line.rstrip())
