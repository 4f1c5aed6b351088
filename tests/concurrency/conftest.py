import json
import os
import random
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from django_semq.invariants import audit
from tests.concurrency import HANDS_TO_NOBODY, QUIET, STARTS
from tests.concurrency.actors import Actor, Arrange, meetings
from tests.concurrency.crowd import KEYS, SETTINGS, Crowd
from tests.concurrency.observer import Observer
from tests.processes import Child


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


@pytest.fixture
def spawn(transactional_db, project, spawn) -> Callable[..., Child]:
    """`tests.processes.spawn` in the small project of these tests; `faults` are what goes wrong there."""

    def start(*args: object, faults: dict[str, dict] | None = None) -> Child:
        env = {
            "DJANGO_SETTINGS_MODULE": "tests.concurrency.settings",
            "SEMQ_TEST_FAULTS": json.dumps(faults or {}),
        }
        return spawn(*args, env=env)

    return start


@pytest.fixture
def observer(tmp_path) -> Observer:
    return Observer(tmp_path / "events")


@pytest.fixture
def actors(spawn) -> Callable[..., list[Actor]]:
    """Starts that many processes that do what the test tells them."""

    def start(number: int, **how: Any) -> list[Actor]:
        children = [spawn("tests.concurrency.actor", **how) for _one in range(number)]
        for child in children:
            child.wait_for_line("ready", STARTS)
        return [Actor(child) for child in children]

    return start


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
        yield from meetings(one, other, arrange, f"{fresh} a", **how)
        turned = meetings(other, one, lambda name: arrange(name)[::-1], f"{fresh} b", **how)
        yield from ((name, mine, yours) for name, yours, mine in turned)
        assert audit() == []

    return run
