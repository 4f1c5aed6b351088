"""Promises under contention: real processes on real databases, some stopped between statements, some killed.

`observer` counts what runs from what the work itself wrote down; `work` is the application, `crowd` its processes;
`actor` is a process that does what a test tells it, stopped where the test says; `wire` is cut and `servers` are
killed. SEMQ_TEST_LOAD=10 makes the long tests ten times longer,
SEMQ_KILL_SECONDS=600 kills for ten minutes, SEMQ_TEST_SEED=n kills in the order of the run that printed this seed.
"""

import os

LOAD = float(os.environ.get("SEMQ_TEST_LOAD", "1"))


def loaded(number: float) -> int:
    return max(1, round(number * LOAD))


KILL_SECONDS = loaded(float(os.environ.get("SEMQ_KILL_SECONDS", "60")))
"""How long processes are killed on each database, over all tests that do. Less than a minute is for developing."""
HANDS_TO_NOBODY = {"ADMIT": "tests.concurrency.work.nothing"}
"""A queue whose admitted items the test itself looks for."""
QUIET = {"WAKE": False}
"""Wake-ups through django-q2 are one more write for each admission, and most of these tests have no cluster."""
STARTS = 60
"""Seconds: twenty processes that start at once on a busy machine take a while."""
