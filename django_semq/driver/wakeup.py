"""A wait that threads and signal handlers can end: the self-pipe trick (D. J. Bernstein)."""

from __future__ import annotations

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
        try:
            os.write(self._writer, b"\0")
        except BlockingIOError:
            pass  # The pipe is full of wake-ups already.

    def wait(self, seconds: float, also: Sequence[int] = ()) -> None:
        """Return when set, when one of the descriptors is readable, or after this time."""
        select.select([self._reader, *also], [], [], max(0.0, seconds))
        try:
            while os.read(self._reader, 4096):
                pass
        except BlockingIOError:
            pass

    def close(self) -> None:
        os.close(self._reader)
        os.close(self._writer)
