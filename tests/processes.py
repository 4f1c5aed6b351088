"""Processes that tests start: ordinary Python programs on the database of the running test.

Whatever a test waits for, it waits for a fact: a line that the process printed, or its end. Tests take the
`spawn` fixture of conftest.py, which ends what a test left running.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from textwrap import dedent

from django.conf import settings

ROOT = Path(__file__).resolve().parent.parent


class Child(subprocess.Popen[str]):
    """A process whose lines are read as they come, so that it never stands still before a full pipe."""

    def __init__(self, command: list[str], env: Mapping[str, str]) -> None:
        super().__init__(
            command,
            cwd=ROOT,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            # A group of its own: what it starts itself can be ended with it.
            start_new_session=True,
        )
        self.lines: list[str] = []
        self._changed = threading.Condition()
        self._ended = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self.stdout:
            with self._changed:
                self.lines.append(line.rstrip("\n"))
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def wait_for_line(self, text: str, timeout: float = 30) -> str:
        """Return the first line that contains `text`; fail with all it printed when none comes."""
        deadline = time.monotonic() + timeout
        seen = 0
        with self._changed:
            while True:
                for line in self.lines[seen:]:
                    if text in line:
                        return line
                seen = len(self.lines)
                left = deadline - time.monotonic()
                if self._ended or left <= 0:
                    why = "ended" if self._ended else f"ran for {timeout} s"
                    printed = "\n".join(self.lines)
                    raise AssertionError(f"The process {why} and did not print {text!r}, but:\n{printed}")
                self._changed.wait(left)

    def tell(self, line: str) -> None:
        """Write a line to its standard input: the way to let it go on from a point it told us it reached."""
        self.stdin.write(line + "\n")
        self.stdin.flush()

    def clear_away(self) -> None:
        """End it and all that it started, and close what we hold of it."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.wait()
        self._reader.join()
        with suppress(BrokenPipeError):  # A line was on its way to it.
            self.stdin.close()
        self.stdout.close()

    def finish(self, timeout: float = 30) -> list[str]:
        """Wait for a good end and return what it printed."""
        returncode = self.wait(timeout)
        self._reader.join(timeout)
        assert returncode == 0, f"The process ended with {returncode}:\n" + "\n".join(self.lines)
        return self.lines


def spawn(code_or_module: str, *args: object, env: Mapping[str, str] | None = None) -> Child:
    """Start Python on the test database: on a module (`"django", "semq_run"` is a command) or on code.

    Code runs with Django set up. To say that it is ready it prints a line; see `Child.wait_for_line`.
    """
    if all(part.isidentifier() for part in code_or_module.split(".")):
        what = ["-m", code_or_module]
    else:
        what = ["-c", "import django; django.setup()\n" + dedent(code_or_module)]
    # Unbuffered: a line is there when it is printed.
    return Child([sys.executable, "-u", *what, *map(str, args)], child_env() | dict(env or {}))


def child_env() -> dict[str, str]:
    return os.environ | {
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "SEMQ_TEST_DB": settings.DATABASE,
        "SEMQ_TEST_NAME": settings.TEST_NAME,
        "SEMQ_TEST_CHILD": "1",
    }


def kill9(child: Child) -> None:
    """End this very process as a power cut would; what it has started lives on."""
    child.kill()
    child.wait()
