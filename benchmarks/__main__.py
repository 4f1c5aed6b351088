"""Measures the workloads on one database and prints a table; the same as JSON goes into `results/`.

    python -m benchmarks                       W1 to W4 and W8 on PostgreSQL, three times each
    python -m benchmarks W1 W2 --db mariadb    some of them, elsewhere
    python -m benchmarks --repeat 1 --scale 0.1

W1  no-op items over 100 keys with limit 5          items/s from the first admission to the last release
W2  no-op items over one key with limit 50          the same
W3  one item at a time on an idle queue             ms from the call of enqueue() to the start of admit()
W4  items of 20 ms on one key with limit 5          share of the ideal 250/s, and the most that ran at once
W8  enqueue_many() of 100, and enqueue() one by one items/s, hooks included, one process

One `semq_run` drives, as it would in production. Items are stored with a limit of 0; the daemon then starts with
the real one, finds that the rules have changed and looks at all that waits.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


def main() -> int:
    arguments = parse()
    os.environ["SEMQ_TEST_DB"] = arguments.db
    os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.settings"
    prepare_database()
    rows = []
    for name in arguments.workloads or WORKLOADS:
        figures = [WORKLOADS[name](arguments.scale) for _ in range(arguments.repeat)]
        row = {"workload": name, "database": server(), "runs": figures}
        row |= {figure: statistics.median(run[figure] for run in figures) for figure in figures[0]}
        rows.append(row)
        print(f"{name}  " + "  ".join(f"{figure} {row[figure]:.6g}" for figure in figures[0]), flush=True)
    RESULTS.mkdir(exist_ok=True)
    report = {"python": platform.python_version(), "cores": os.cpu_count(), "scale": arguments.scale, "rows": rows}
    (RESULTS / f"{arguments.db}.json").write_text(json.dumps(report, indent=1) + "\n")
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", metavar="W", help=", ".join(WORKLOADS))
    parser.add_argument("--db", choices=["postgres", "mariadb", "sqlite"], default="postgres")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the items")
    arguments = parser.parse_args()
    if unknown := set(arguments.workloads) - WORKLOADS.keys():
        parser.error(f"no workload {', '.join(sorted(unknown))}; there are {', '.join(WORKLOADS)}")
    return arguments


def throughput(items: int, keys: int, limit: int) -> dict[str, float]:
    with tempfile.NamedTemporaryFile() as log:
        empty_tables()
        store(items, keys)
        with daemon(log.name, BENCH_LIMIT=str(limit), BENCH_ADMIT="release_all") as running:
            wait_for(nothing_left, running)
        spans = read_spans(log.name)
    seconds = max(end for _begin, end in spans) - min(begin for begin, _end in spans)
    return {"items_per_second": items / seconds}


def w1(scale: float) -> dict[str, float]:
    return throughput(int(10_000 * scale), keys=100, limit=5)


def w2(scale: float) -> dict[str, float]:
    return throughput(int(5_000 * scale), keys=1, limit=50)


def w3(scale: float) -> dict[str, float]:
    from django_semq import enqueue, semaphores

    empty_tables()
    called = {}
    semaphores.set_limit("k0", 5)
    with tempfile.NamedTemporaryFile() as log, daemon(log.name, BENCH_ADMIT="start", BENCH_POLL="30") as running:
        for number in range(int(200 * scale) + 5):
            uid = f"w3-{number}"
            called[uid] = time.time()
            enqueue("k0", {}, id=uid)
            wait_for(nothing_left, running)
            time.sleep(0.02)  # The queue is idle again, and so is the daemon.
        started = {uid: float(at) for at, uid in (line.split() for line in Path(log.name).read_text().splitlines())}
    waits = sorted(1000 * (started[uid] - at) for uid, at in list(called.items())[5:])
    return {"median_ms": statistics.median(waits), "p95_ms": waits[int(len(waits) * 0.95)]}


def w4(scale: float) -> dict[str, float]:
    items = int(1_000 * scale)
    with tempfile.NamedTemporaryFile() as log:
        empty_tables()
        store(items, keys=1)
        with daemon(log.name, BENCH_LIMIT="5", BENCH_ADMIT="work") as running:
            wait_for(nothing_left, running)
        spans = read_spans(log.name)
    assert len(spans) == items, f"{len(spans)} of {items} items ran"
    seconds = max(end for _begin, end in spans) - min(begin for begin, _end in spans)
    return {"share_of_ideal": items / seconds / 250, "most_at_once": most_at_once(spans)}


def w8(scale: float) -> dict[str, float]:
    from django_semq import enqueue, enqueue_many

    empty_tables()
    many, single = int(20_000 * scale), int(1_000 * scale)
    begun = time.perf_counter()
    for start in range(0, many, 100):
        enqueue_many({"key": f"k{n % 100}", "body": {"n": n}, "id": f"m{n}"} for n in range(start, start + 100))
    by_hundreds = many / (time.perf_counter() - begun)
    begun = time.perf_counter()
    for number in range(single):
        enqueue(f"k{number % 100}", {"n": number}, id=f"s{number}")
    return {"by_hundreds_per_second": by_hundreds, "one_by_one_per_second": single / (time.perf_counter() - begun)}


WORKLOADS = {"W1": w1, "W2": w2, "W3": w3, "W4": w4, "W8": w8}


# ------------------------------------------------------------------------------------------------------------- parts


class daemon:
    """A `semq_run` process, for the length of a with block."""

    def __init__(self, log: str, **environment: str) -> None:
        self.environment = {**os.environ, "BENCH_LOG": log, **environment}

    def __enter__(self) -> subprocess.Popen:
        command = [sys.executable, "-m", "django", "semq_run"]
        self.process = subprocess.Popen(command, env=self.environment, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        self.process.stdout.readline()  # It says that it drives.
        return self.process

    def __exit__(self, *_error: object) -> None:
        self.process.terminate()
        self.process.communicate(timeout=60)


def wait_for(fact: Callable[[], bool], running: subprocess.Popen) -> None:
    ends = time.monotonic() + 600
    while not fact():
        assert running.poll() is None, "semq_run ended"
        assert time.monotonic() < ends, "it did not happen in ten minutes"
        time.sleep(0.01)


def store(items: int, keys: int) -> None:
    from django_semq import enqueue_many

    for start in range(0, items, 1_000):
        enqueue_many(
            {"key": f"k{n % keys}", "body": {"n": n}, "id": f"i{n}"} for n in range(start, min(start + 1_000, items))
        )


def read_spans(log: str) -> list[tuple[float, float]]:
    lines = (line.split() for line in Path(log).read_text().splitlines())
    return [(float(begin), float(end)) for begin, end in lines]


def most_at_once(spans: list[tuple[float, float]]) -> int:
    """An end at the same instant as a begin comes first."""
    changes = sorted([(begin, 1) for begin, _end in spans] + [(end, -1) for _begin, end in spans])
    return max(accumulate(change for _at, change in changes))


def nothing_left() -> bool:
    from django_semq.models import Item

    return not Item.objects.exists()


def prepare_database() -> None:
    import django
    from django.conf import settings
    from django.core.management import call_command
    from django.db import connection

    django.setup()
    name = settings.DATABASES["default"]["NAME"]
    if connection.vendor != "sqlite":
        settings.DATABASES["default"]["NAME"] = {"postgresql": "postgres", "mysql": ""}[connection.vendor]
        connection.settings_dict["NAME"] = settings.DATABASES["default"]["NAME"]
        with connection.cursor() as cursor:
            cursor.execute(f"DROP DATABASE IF EXISTS {name}")
            cursor.execute(f"CREATE DATABASE {name}")
        connection.close()
        connection.settings_dict["NAME"] = name
    else:
        for suffix in ("", "-wal", "-shm"):
            Path(f"{name}{suffix}").unlink(missing_ok=True)
    call_command("migrate", verbosity=0)


def empty_tables() -> None:
    from django.core.management import call_command

    call_command("flush", verbosity=0, interactive=False)


def server() -> str:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("SELECT sqlite_version()" if connection.vendor == "sqlite" else "SELECT version()")
        return f"{connection.vendor} {cursor.fetchone()[0]}"


if __name__ == "__main__":
    sys.exit(main())
