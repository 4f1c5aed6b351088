"""However many processes enqueue, hand over and release: never more run than the limit says."""

import json
import time

import pytest

from tests.concurrency import QUIET, STARTS, loaded
from tests.concurrency.observer import Observer, exceeded, longest_neglect, peaks
from tests.concurrency.states import leftovers, wait_until
from tests.processes import Child

pytestmark = [pytest.mark.processes, pytest.mark.django_db(transaction=True)]

WORKERS = 20
DRIVERS = 3
POLL_INTERVAL = 5.0
HOT = "hot"
RULES = {
    HOT: {"limit": 7},
    "key-*": {"limit": 4, "groups": {"narrow": 1, "wide": 3}},
}
PLACES = [[HOT, "", 100]] + [[f"key-{number}", group, 1] for number in range(50) for group in ("", "narrow", "wide")]
PATIENCE = 60
"""Seconds in which at least one item must get on."""


def limit(key: str) -> int:
    return RULES[HOT if key == HOT else "key-*"]["limit"]


def ceiling(key: str, group: str) -> int | None:
    return RULES["key-*"]["groups"].get(group) if key != HOT else None


@pytest.fixture
def run(spawn, project, observer, monkeypatch):
    """Runs that many items through workers and drivers, and stops when all are released."""
    project(
        QUEUES={"default": {"ADMIT": "tests.concurrency.work.admit"}},
        HOLDER={"RULES": RULES},
        DRIVER=QUIET | {"POLL_INTERVAL": POLL_INTERVAL},
    )
    monkeypatch.setenv("SEMQ_TEST_KEYS", json.dumps(PLACES))

    def start(number: int, faults: dict | None = None) -> None:
        drivers = [spawn("django", "semq_run", faults=faults) for _number in range(DRIVERS)]
        each = number // WORKERS
        workers = [spawn("tests.concurrency.worker", name, each, 3, 0, 0.01, faults=faults) for name in range(WORKERS)]
        for driver in drivers:
            driver.wait_for_line("driving", STARTS)
        for worker in workers:
            worker.wait_for_line("ready", STARTS)
        for worker in workers:
            worker.tell("go")
        began = time.monotonic()
        wait_for_all(observer, each * WORKERS, [*drivers, *workers])
        print(f"\n{each * WORKERS} items in {time.monotonic() - began:.0f} s")
        for worker in workers:
            worker.tell("stop")
        for worker in workers:
            assert worker.finish() == ["ready"]
        for driver in drivers:
            driver.terminate()
        for driver in drivers:
            assert driver.finish() == ["semq_run: driving"]

    return start


def wait_for_all(observer: Observer, number: int, processes: list[Child]) -> None:
    """Until every item is released, as long as they get on and nobody dies."""
    released = 0
    while released < number:

        def got_on(so_far: int = released) -> bool:
            return len(observer.items("released")) > so_far or any(one.poll() is not None for one in processes)

        wait_until(got_on, PATIENCE, f"more than {released} of {number} released")
        assert all(one.poll() is None for one in processes), [one.lines for one in processes if one.poll()]
        released = len(observer.items("released"))
        time.sleep(0.5)


def test_limits_and_ceilings_hold_and_every_item_runs_once(run, observer, spawn):
    """(B19)"""
    run(loaded(5000))

    events = observer.events()
    most = peaks(events)
    print(f"most at once: {most.of_key[HOT]} of {limit(HOT)} on the hot key,")
    for group in ("narrow", "wide"):
        of_group = max(number for (_key, name), number in most.of_group.items() if name == group)
        print(f"  {of_group} of {ceiling('key-0', group)} in groups {group},")
    print(f"  {max(number for key, number in most.of_key.items() if key != HOT)} of 4 on the other keys")
    assert exceeded(events, limit, ceiling) == []

    for what in ("queued", "start", "end", "released"):
        assert sorted(observer.items(what)) == sorted(observer.items("enqueuing")), what

    seconds, key = longest_neglect(events, limit, ceiling)
    print(f"a free permit and an item that waited for it: at most {seconds:.2f} s (key {key})")
    assert seconds <= POLL_INTERVAL + 1

    assert leftovers() == []
    assert spawn("django", "semq_doctor").finish() == ["all counters are right"]


def test_the_observer_sees_it_when_the_holder_gives_without_limit(run, observer):
    run(loaded(600), faults={"no_limit": {}})

    wrong = exceeded(observer.events(), limit, ceiling)
    print(f"{len(wrong)} limits exceeded, among them {wrong[:3]}")
    assert any(line.startswith(f"key {HOT}:") for line in wrong)
    assert any(line.startswith("group narrow of key") for line in wrong)
