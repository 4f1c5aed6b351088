"""What goes wrong in a process that a test starts. `apps.py` calls these at its start."""

import re
import signal
from datetime import timedelta
from importlib import import_module

from django.db.backends.signals import connection_created

from tests.concurrency import work


def no_limit() -> None:
    """The holder gives whatever is wanted."""
    from django_semq.holder import service

    def allocate(free, rows, caps, **kwargs):
        return {(row.client, row.group): row.need for row in rows if row.need > 0}

    service.allocate = allocate


def no_round() -> None:
    """The holder fails whenever it is asked for permits: the pump sets the key aside."""
    from django_semq.holder import service

    def allocate(*args, **kwargs):
        raise ArithmeticError("this process cannot count")

    service.allocate = allocate


def patient_callers() -> None:
    """Callers' hooks go on for as many rounds as it takes; they leave the rest to the driver after a few."""
    from django_semq.queue import pump

    pump.CALLER_ROUNDS = 1_000_000


def impatient(**seconds: float) -> None:
    """Waits of the library that no setting shortens."""
    for path, value in seconds.items():
        module, _, name = path.rpartition(".")
        setattr(import_module(module), name, timedelta(seconds=value))


def stands_still(pattern: str, nth: int) -> None:
    """Before the n-th statement that fits, on whatever connection, the process says so and stops for good."""
    seen = 0

    def stand_still(execute, sql, params, many, context):
        nonlocal seen
        if re.search(pattern, sql, re.DOTALL):
            seen += 1
            if seen == nth:
                print("stands still", flush=True)
                signal.pause()
        return execute(sql, params, many, context)

    def watch(*, connection, **kwargs):
        connection.execute_wrappers.append(stand_still)

    connection_created.connect(watch, weak=False)


def hangs_in_admit(begins: bool) -> None:
    """admit() says that it runs and never returns; it has begun its work by then, or not."""
    admit = work.admit

    def hang(items):
        if begins:
            admit(items)
        print("runs admit", flush=True)
        while True:
            signal.pause()

    work.admit = hang
