"""What the items of the workloads do, and the times they write to the file that BENCH_LOG names."""

import os
import time
from concurrent.futures import ThreadPoolExecutor

from django_semq import release, release_many

WORK_SECONDS = 0.02
WORKERS = 16

_log = open(os.environ["BENCH_LOG"], "a", buffering=1) if "BENCH_LOG" in os.environ else None  # noqa: SIM115
_pool = ThreadPoolExecutor(WORKERS)


def release_all(items):
    """No work at all: what is left is the queue's own price."""
    release_many([item.id for item in items])
    _log.write(f"{items[0].admitted_at.timestamp()} {time.time()}\n")


def start(items):
    """Say that the items have begun, before anything else."""
    now = time.time()
    _log.write("".join(f"{now} {item.id}\n" for item in items))
    release_many([item.id for item in items])


def work(items):
    """Start 20 ms of work for each item, and come back at once."""
    for item in items:
        _pool.submit(_work, item.id)


def _work(uid):
    begun = time.time()
    time.sleep(WORK_SECONDS)
    _log.write(f"{begun} {time.time()}\n")
    release(uid)
