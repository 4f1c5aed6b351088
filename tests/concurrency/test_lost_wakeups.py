"""Whoever commits a nudge and finds its key taken may leave: the owner looks again after its end."""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import django_semq
from django_semq import clock, enqueue
from django_semq.driver.tick import tick
from django_semq.invariants import audit
from django_semq.models import Key, KeyGroup, Semaphore
from tests.concurrency import loaded
from tests.concurrency.actors import meetings
from tests.concurrency.rows import drive, enqueue_only, state
from tests.concurrency.states import leftovers, wait_until

pytestmark = [pytest.mark.processes, pytest.mark.django_db(transaction=True)]

ALONE: dict = {"patient_callers": {}}
PROCESSES = 8
EACH = {1: 25, 5: 25, 50: 50}
"""Limit of a key: items that each of these processes enqueues there."""
PATIENCE = 20
"""Seconds in which somebody must have got on, on a machine that does other things too."""


def test_callers_alone_finish_everything(spawn, project):
    each = {f"limit {limit}": loaded(number) for limit, number in EACH.items()}
    project(HOLDER={"RULES": {f"limit {limit}": {"limit": limit} for limit in EACH}})
    numbers = [f"{key}={number}" for key, number in each.items()]
    crowd = [spawn("tests.concurrency.finisher", name, PATIENCE, *numbers, faults=ALONE) for name in range(PROCESSES)]

    released: Counter[str] = Counter()
    for child in crowd:
        for line in child.finish(timeout=3600):
            key, _released, number = line.partition(" released ")
            released[key] += int(number)
    assert released == {key: PROCESSES * number for key, number in each.items()}
    assert leftovers() == []


def test_a_nudge_during_a_pump_is_not_missed(meet, project):
    project(HOLDER={"DEFAULT_LIMIT": 5})

    def arrange(name):
        enqueue(name, None, id=f"{name} runs")
        return [["release", "default", f"{name} runs"]], [["enqueue", "default", name, name]]

    for name, _released, _queued in meet(arrange):
        assert state(name) == "admitted", name


def test_a_nudge_during_a_repair_is_not_missed(meet, project):
    project(HOLDER={"DEFAULT_LIMIT": 5})

    def arrange(name):
        enqueue(name, None, id=f"{name} runs")
        KeyGroup.objects.filter(key__name=name).update(queued=3, admitted=0)
        Semaphore.objects.filter(name=name).update(footprint=4)
        return [["repair"]], [["enqueue", "default", name, name]]

    for name, _repaired, _queued in meet(arrange):
        assert state(name) == "admitted", name


def test_a_nudge_while_an_idle_key_is_removed_is_not_missed(meet):
    def arrange(name):
        enqueue(name, None, id=f"{name} runs")
        django_semq.release(f"{name} runs")
        Key.objects.filter(name=name).update(due_at=clock.LONG_AGO)
        return [["pump", "default", name]], [["enqueue", "default", name, name]]

    for name, _admitted, _queued in meet(arrange):
        assert state(name) == "admitted", name


def test_a_nudge_while_an_idle_semaphore_is_removed_is_not_missed(meet):
    def arrange(name):
        enqueue(name, None, id=f"{name} runs")
        django_semq.release(f"{name} runs")
        Semaphore.objects.filter(name=name).update(idle_since=clock.LONG_AGO)
        return [["sweep"]], [["enqueue", "default", name, name]]

    for name, _removed, _queued in meet(arrange):
        drive(name)
        assert state(name) == "admitted", name


def test_a_nudge_while_a_key_is_set_aside_is_not_missed(actors, project):
    project(HOLDER={"DEFAULT_LIMIT": 5})
    (caller,) = actors(1)
    (failing,) = actors(1, faults={"no_round": {}})

    def arrange(name):
        enqueue_only(name, f"{name} first")
        return [["pump", "default", name]], [["enqueue", "default", name, name]]

    def turned(name):
        return arrange(name)[::-1]

    names = [name for name, *_results in meetings(failing, caller, arrange, "a")]
    names += [name for name, *_results in meetings(caller, failing, turned, "b")]
    assert Key.objects.filter(set_aside_count__gt=0).exists()

    def all_are_admitted() -> bool:
        tick(threads=0)  # What is set aside is the driver's.
        return all(state(name) == "admitted" for name in names)

    wait_until(all_are_admitted, 10, "a driver admits them")
    assert audit() == []


def test_these_are_all_places_that_lock_keys():
    """Whoever locks keys has to look for nudges after its end: a new one belongs into a test of this module."""
    assert set(callers("lock_keys")) == {"take", "with_keys", "_set_aside"}
    assert set(callers("with_keys")) == {"repair"}


def callers(name: str) -> Iterator[str]:
    """Functions of the library that call this one."""
    for path in Path(django_semq.__file__).parent.rglob("*.py"):
        module = ast.parse(path.read_text())
        classes = [part for part in module.body if isinstance(part, ast.ClassDef)]
        for function in [*module.body, *(part for one in classes for part in one.body)]:
            if isinstance(function, ast.FunctionDef) and name in calls_in(function):
                yield function.name


def calls_in(function: ast.FunctionDef) -> set[str]:
    return {
        node.func.id for node in ast.walk(function) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
