"""Run one tick, for cron and for looking at it."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand

from django_semq.driver.tick import tick


class Command(BaseCommand):
    help = "Run everything due once and print when a tick is next needed (ISO time), or `idle`."

    def handle(self, *args: Any, **options: Any) -> None:
        due = tick()
        self.stdout.write("idle" if due is None else due.isoformat())
