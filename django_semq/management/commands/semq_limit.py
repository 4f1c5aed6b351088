"""Show and set the limits of one key."""

from __future__ import annotations

import dataclasses
import json
import sys
from datetime import datetime
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from django_semq.exceptions import SemqError
from django_semq.holder import semaphores


class Command(BaseCommand):
    help = "Show the limit of a key and what is issued of it; with N, --reset, --pause or --resume change it first."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("key")
        change = parser.add_mutually_exclusive_group()
        change.add_argument("limit", nargs="?", metavar="N", help="a whole number; 0 blocks, `none` is unlimited")
        change.add_argument("--reset", action="store_true", help="back to function, rules or default")
        change.add_argument("--pause", action="store_true", help="issue nothing more; what runs goes on")
        change.add_argument("--resume", action="store_true")
        parser.add_argument("--group", help="change the ceiling of this group instead")
        parser.add_argument("--json", action="store_true")

    def handle(self, *args: Any, key: str, limit: str | None, group: str | None, **options: Any) -> None:
        try:
            if limit is not None:
                _set(key, group, _number(limit))
            elif options["reset"]:
                semaphores.reset_limit(key, group)
            elif options["pause"]:
                semaphores.pause(key, group)
            elif options["resume"]:
                semaphores.resume(key, group)
            usage = semaphores.usage(key)
        except SemqError as error:
            self.stderr.write(str(error))
            sys.exit(2)
        if options["json"]:
            self.stdout.write(json.dumps(dataclasses.asdict(usage), default=datetime.isoformat))
        else:
            self._show(key, usage)

    def _show(self, key: str, usage: semaphores.KeyUsage) -> None:
        paused = ", paused" if usage.paused else ""
        self.stdout.write(
            f"{key}: limit {_shown(usage.limit)} ({usage.source}), footprint {usage.footprint},"
            f" headroom {_shown(usage.headroom)}{paused}"
        )
        for name, group in usage.groups.items():
            paused = ", paused" if group.paused else ""
            self.stdout.write(
                f"  group {name!r}: ceiling {_shown(group.ceiling, 'none')}, footprint {group.footprint}{paused}"
            )
        for issued in usage.issued:
            self.stdout.write(
                f"  {issued.kind} {issued.id} of {issued.client}, group {issued.group!r}:"
                f" {issued.in_use} of {issued.permits} in use since {issued.since:%Y-%m-%d %H:%M:%S}"
            )


def _set(key: str, group: str | None, limit: int | None) -> None:
    if group is None:
        semaphores.set_limit(key, limit)
    else:
        semaphores.set_ceiling(key, group, limit)


def _number(text: str) -> int | None:
    if text.lower() == "none":
        return None
    try:
        return int(text)
    except ValueError:
        raise CommandError(f"N is {text!r}; give a whole number, or `none` for unlimited", returncode=2) from None


def _shown(number: int | None, otherwise: str = "unlimited") -> str:
    return otherwise if number is None else str(number)
