"""The benchmark's project. The database and the workload come from the environment, set by `benchmarks.__main__`."""

import os

os.environ.setdefault("SEMQ_TEST_DB", "postgres")
os.environ.setdefault("SEMQ_TEST_NAME", "semq_bench")
os.environ["SEMQ_TEST_CHILD"] = "1"

from tests.settings import *  # noqa: F403

DATABASES["default"]["CONN_MAX_AGE"] = None  # noqa: F405

SEMQ = {
    "QUEUES": {"default": {"ADMIT": f"benchmarks.handlers.{os.environ.get('BENCH_ADMIT', 'release_all')}"}},
    "HOLDER": {"DEFAULT_LIMIT": int(os.environ.get("BENCH_LIMIT", "0"))},
    "DRIVER": {
        "SCHEDULE": False,
        "WAKE": False,  # No cluster runs: the daemon is measured alone.
        "POLL_INTERVAL": float(os.environ.get("BENCH_POLL", "0.5")),
    },
}
