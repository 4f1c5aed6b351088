"""What the processes of a test wrote down, each event a line of one file.

A short write with O_APPEND is whole whoever else writes, and what a killed process wrote stays. Times are of the
clock that all processes of a machine share.
"""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

T = TypeVar("T")

PATIENCE = 60.0
"""Seconds after which what did not happen never will, even on a machine that is busy with other things."""


class Journal:
    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def note(self, what: str, **fields: Any) -> None:
        line = json.dumps({"at": time.monotonic(), "pid": os.getpid(), "what": what, **fields})
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(file, f"{line}\n".encode())
        finally:
            os.close(file)

    def events(self, what: str, **equal: Any) -> list[SimpleNamespace]:
        """The events of this kind whose fields have these values, in the order in which they were written."""
        if not self.path.exists():
            return []
        lines = self.path.read_text().split("\n")[:-1]  # The last one may be under way.
        events = [json.loads(line) for line in lines]
        wanted = {"what": what, **equal}
        return [SimpleNamespace(**event) for event in events if wanted.items() <= event.items()]

    def wait_for(self, what: str, count: int = 1, timeout: float = PATIENCE, **equal: Any) -> list[SimpleNamespace]:
        """The events of this kind, once there are so many."""

        def enough() -> list[SimpleNamespace] | None:
            events = self.events(what, **equal)
            return events if len(events) >= count else None

        return until(enough, f"{count} × {what} {equal or ''}", timeout)

    def open_gate(self, name: str) -> None:
        """Let those go on that stand `at_gate`."""
        self.path.with_name(f"{name}.gate").touch()

    def at_gate(self, name: str) -> None:
        until(self.path.with_name(f"{name}.gate").exists, f"the gate {name}")


def until(fact: Callable[[], T], what: str, timeout: float = PATIENCE) -> T:
    """Wait until this is true, and return it."""
    ends_at = time.monotonic() + timeout
    while not (found := fact()):
        if time.monotonic() > ends_at:
            raise AssertionError(f"did not happen within {timeout:g} s: {what}")
        time.sleep(0.01)
    return found
