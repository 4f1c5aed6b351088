"""Promises under contention: real processes on real databases, some stopped between statements, some killed.

`observer` counts what runs from what the work itself wrote down; `work` is the application; `actor` is a process
that does what a test tells it, stopped where the test says. SEMQ_TEST_LOAD=10 makes the long tests ten times longer.
"""

import os

LOAD = float(os.environ.get("SEMQ_TEST_LOAD", "1"))


def loaded(number: int) -> int:
    return max(1, round(number * LOAD))
