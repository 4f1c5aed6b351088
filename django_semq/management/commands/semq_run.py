"""Drive the queues until stopped: the low-latency companion of the schedule."""

from __future__ import annotations

import sys
from typing import Any

from django.core.management.base import BaseCommand

from django_semq.driver.daemon import Daemon


class Command(BaseCommand):
    help = "Drive the queues until SIGTERM or SIGINT. Several may run; a second signal ends at once."

    def handle(self, *args: Any, **options: Any) -> None:
        daemon = Daemon()
        self.stdout.write("semq_run: driving")
        self.stdout.flush()
        sys.exit(daemon.run())
