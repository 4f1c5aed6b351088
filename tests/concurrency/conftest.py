import json
import os
import random
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from django_semq.invariants import audit
from tests import processes
from tests.concurrency import HANDS_TO_NOBODY, QUIET, STARTS
from tests.concurrency.actors import Actor, Arrange, Call, meetings
from tests.concurrency.crowd import KEYS, SETTINGS, Crowd
from tests.concurrency.observer import Observer
from tests.processes import Child

ACTOR = "tests.concurrency.actor"


@pytest.fixture
def project(settings, monkeypatch, tmp_path) -> Callable[..., None]:
    """Gives this process, and all that the test starts, these settings."""
    monkeypatch.setenv("SEMQ_TEST_FOLDER", str(tmp_path))

    def configure(**semq: dict) -> None:
        semq = {"QUEUES": {"default": HANDS_TO_NOBODY}, "DRIVER": QUIET} | semq
        settings.SEMQ = semq
        monkeypatch.setenv("SEMQ_TEST_SETTINGS", json.dumps(semq))

    configure()
    return configure


def environment(faults: dict[str, dict] | None = None) -> dict[str, str]:
    """Of a process in the small project of these tests; `faults` are what goes wrong there."""
    return {
        "DJANGO_SETTINGS_MODULE": "tests.concurrency.settings",
        "SEMQ_TEST_FAULTS": json.dumps(faults or {}),
    }


@pytest.fixture
def spawn(transactional_db, project, spawn) -> Callable[..., Child]:
    """`tests.processes.spawn` in the small project of these tests; `faults` are what goes wrong there."""

    def start(*args: object, faults: dict[str, dict] | None = None) -> Child:
        return spawn(*args, env=environment(faults))

    return start


@pytest.fixture
def observer(tmp_path) -> Observer:
    return Observer(tmp_path / "events")


@pytest.fixture(scope="module")
def idle(django_db_setup) -> Iterator[list[Child]]:
    """Actors without faults that have done all that the tests before told them: to start one takes longer than most
    tests."""
    children: list[Child] = []
    yield children
    for child in children:
        child.clear_away()


@pytest.fixture
def actors(spawn, idle, settings) -> Iterator[Callable[..., list[Actor]]]:
    """That many processes that do what the test tells them."""
    without_faults: list[Actor] = []

    def one(faults: dict[str, dict] | None) -> Actor:
        if faults:
            return Actor(spawn(ACTOR, faults=faults))
        without_faults.append(Actor(idle.pop() if idle else processes.spawn(ACTOR, env=environment())))
        return without_faults[-1]

    def start(number: int, faults: dict[str, dict] | None = None) -> list[Actor]:
        found = [one(faults) for _number in range(number)]
        for actor in found:
            actor.start(["configure", settings.SEMQ])
        for actor in found:
            actor.results(within=STARTS)
        return found

    yield start
    for actor in without_faults:
        if actor.is_idle():
            actor.child.lines.clear()
            idle.append(actor.child)
        else:
            actor.child.clear_away()


@pytest.fixture
def crowd(spawn) -> Crowd:
    """The processes of a test that breaks things."""
    return Crowd(spawn, seed=int(os.environ.get("SEMQ_TEST_SEED", random.randrange(10**6))))


@pytest.fixture
def application(project, monkeypatch) -> None:
    """What `work` does: a few items at a time of each of a few keys."""
    project(**SETTINGS)
    monkeypatch.setenv("SEMQ_TEST_KEYS", json.dumps(KEYS))


@pytest.fixture
def fresh() -> str:
    """A prefix that no test before has used. InnoDB keeps a row that is gone for a while, and an insert of its id
    then locks the gap up to the next id."""
    return uuid.uuid4().hex[:8]


@pytest.fixture
def meet(actors, fresh) -> Callable[..., Iterator[tuple[str, Any, Any]]]:
    """Every way in which two orders can meet, either falling into the other: see `meetings`.

    Yields the name of the rows and what each order returned. At the end every counter must be right.
    """

    def run(arrange: Arrange, **how: bool) -> Iterator[tuple[str, Any, Any]]:
        one, other = actors(2)
        differ = False

        def noted(name: str) -> tuple[list[Call], list[Call]]:
            nonlocal differ
            mine, yours = arrange(name)
            differ = differ or mine != yours
            return mine, yours

        yield from meetings(one, other, noted, f"{fresh} a", **how)
        if differ:  # Of two equal orders it is the same whichever falls into the other.
            turned = meetings(other, one, lambda name: arrange(name)[::-1], f"{fresh} b", **how)
            yield from ((name, mine, yours) for name, yours, mine in turned)
        assert audit() == []

    return run
