"""The threads in which `admit()` and `finished()` run, so that one that hangs stops nobody but itself.

A call that is past its time is left alone: Python cannot end a thread. Its thread is replaced, and ends when
the call does, if ever. Each thread has its own database connections, closed or kept by Django's own rule
(CONN_MAX_AGE) after each call.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from django.db import close_old_connections, connections

from django_semq import clock
from django_semq.locking import drop_if_broken

MAX_HUNG = 16
"""Hung threads hold memory and connections: with more of them the process is better restarted."""


@dataclass(eq=False, slots=True)
class Call:
    """One call under way. `about` is the caller's note of what it is for."""

    work: Callable[[], Any]
    timeout: timedelta
    about: Any
    started_at: float = field(default_factory=clock.monotonic)
    result: Any = None
    error: BaseException | None = None
    is_done: bool = False
    is_overdue: bool = False


class Crew:
    """`submit` calls while there are `free` threads, and `collect` what ended. Used by one thread."""

    def __init__(self, threads: int, on_end: Callable[[], None]) -> None:
        self.threads = threads
        self.on_end = on_end
        self.running: list[Call] = []
        """In time. What is past its time is in `hung`."""
        self.hung: list[Call] = []
        self._todo: queue.SimpleQueue[Call] = queue.SimpleQueue()
        self._idle = 0
        self._lock = threading.Lock()

    @property
    def free(self) -> int:
        return 0 if self.is_worn_out else self.threads - len(self.running)

    @property
    def is_worn_out(self) -> bool:
        return len(self.hung) > MAX_HUNG

    def submit(self, work: Callable[[], Any], timeout: timedelta, about: Any) -> None:
        call = Call(work, timeout, about)
        self.running.append(call)
        with self._lock:
            needs_thread = self._idle < self._todo.qsize() + 1
        self._todo.put(call)
        if needs_thread:
            threading.Thread(target=self._work, name="semq-hand-over", daemon=True).start()

    def collect(self) -> list[Call]:
        """Calls that have ended, and those that are past their time, each once."""
        now = clock.monotonic()
        ended = []
        for call in list(self.running):
            if call.is_done:
                self.running.remove(call)
                ended.append(call)
            elif now - call.started_at > call.timeout.total_seconds() and self._give_up(call):
                self.running.remove(call)
                self.hung.append(call)
                ended.append(call)
        self.hung = [call for call in self.hung if not call.is_done]
        return ended

    def next_overdue(self) -> float | None:
        """Seconds until the first running call is past its time."""
        if not self.running:
            return None
        first = min(call.started_at + call.timeout.total_seconds() for call in self.running)
        return max(0.0, first - clock.monotonic())

    def _give_up(self, call: Call) -> bool:
        with self._lock:
            if call.is_done:
                return False  # It ended just now, and is collected next time.
            call.is_overdue = True
            call.error = TimeoutError(f"did not return within {call.timeout.total_seconds():g} s")
            return True

    def _work(self) -> None:
        try:
            while True:
                with self._lock:
                    self._idle += 1
                call = self._todo.get()
                with self._lock:
                    self._idle -= 1
                self._do(call)
                if call.is_overdue:
                    return  # This thread was replaced meanwhile.
        finally:
            connections.close_all()

    def _do(self, call: Call) -> None:
        error: BaseException | None = None
        result = None
        try:
            close_old_connections()
            result = call.work()
        except BaseException as raised:
            error = raised
        finally:
            for connection in connections.all(initialized_only=True):
                drop_if_broken(connection)
            close_old_connections()
        with self._lock:
            if not call.is_overdue:
                call.result, call.error = result, error
            call.is_done = True
        self.on_end()
