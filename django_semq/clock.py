"""The only place that asks for the time. Everything below the driver takes `now` as an argument."""

from __future__ import annotations

import time
from datetime import UTC, datetime

LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)
"""Due at once, whatever the reader's clock says. The writer's own `now` would be in the future of a slower host."""


def now() -> datetime:
    """The application's clock. It is never mixed with the database's `NOW()`."""
    return datetime.now(UTC)


def monotonic() -> float:
    """Seconds for measuring how long something takes; never stored."""
    return time.monotonic()


def pause(seconds: float) -> None:
    """Wait a moment before a retry. Nothing that has a fact to wait for may call this."""
    time.sleep(seconds)
