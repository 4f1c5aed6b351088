"""Recount every counter from the rows, and look for what is overdue."""

from __future__ import annotations

import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from django_semq import clock
from django_semq.invariants import audit, notices, repair


class Command(BaseCommand):
    help = "Recount every counter and say what differs and what is overdue: exit 1 if anything is, 0 if all is right."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--repair", action="store_true", help="write the right values, each under its key's lock")

    def handle(self, *args: Any, repair: bool, **options: Any) -> None:
        findings = audit()
        looked_at = notices(clock.now())
        for line in [*findings, *looked_at]:
            self.stdout.write(str(line))
        if findings and repair:
            _repair(findings, self)
            findings = audit()
            for finding in findings:
                self.stdout.write(f"still: {finding}")
        if findings or looked_at:
            sys.exit(1)
        self.stdout.write("all counters are right")


def _repair(findings: list[Any], command: BaseCommand) -> None:
    repaired = repair(findings, now=clock.now())
    command.stdout.write(f"repaired {repaired} counter(s)")
