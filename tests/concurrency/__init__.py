"""Promises under contention: real processes on real databases, some stopped between statements, some killed.

`observer` counts what runs from what the work itself wrote down; `work` is the application; `actor` is a process
that does what a test tells it, stopped where the test says. SEMQ_TEST_LOAD=10 makes the long tests ten times longer,
SEMQ_TEST_SEED=n kills in the order of the run that printed this seed.
"""

import os

LOAD = float(os.environ.get("SEMQ_TEST_LOAD", "1"))


def loaded(number: int) -> int:
    return max(1, round(number * LOAD))


HANDS_TO_NOBODY = {"ADMIT": "tests.concurrency.work.nothing"}
"""A queue whose admitted items the test itself looks for."""
QUIET = {"WAKE": False}
"""Wake-ups through django-q2 are one more write for each admission, and most of these tests have no cluster."""
STARTS = 60
"""Seconds: thirty processes that start at once on a busy machine take a while."""
