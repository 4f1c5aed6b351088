"""A wait that threads and signal handlers can end: the self-pipe trick (D. J. Bernstein)."""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Sequence


class Wakeup:
    """`set` may be called from any thread and from a signal handler; it is remembered until the next wait."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)

    def set(self) -> None:
        with contextlib.suppress(BlockingIOError):  # The pipe is full of wake-ups already.
            os.write(self._writer, b"\0")

    def wait(self, seconds: float, also: Sequence[int] = ()) -> None:
        """Return when set, when one of the descriptors is readable, or after this time."""
        select.select([self._reader, *also], [], [], max(0.0, seconds))
        with contextlib.suppress(BlockingIOError):  # All of them are read.
            while os.read(self._reader, 4096):
                pass
