import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone
from django_q.models import Schedule

from tests import processes
from tests.e2e.journal import Journal


@dataclass
class Project:
    """Starts the processes of one project, all with the same settings."""

    start: Callable[..., processes.Child]
    journal: Journal
    semq: dict[str, Any] = field(default_factory=dict)
    cluster: dict[str, Any] = field(default_factory=dict)
    """What is different in Q_CLUSTER."""
    waits: dict[str, float] = field(default_factory=dict)
    """Dotted path -> seconds: waits of the library that no setting shortens."""
    more: dict[str, str] = field(default_factory=dict)

    @property
    def env(self) -> dict[str, str]:
        return {
            "DJANGO_SETTINGS_MODULE": "tests.e2e.settings",
            "SEMQ_TEST_SETTINGS": json.dumps(self.semq),
            "SEMQ_TEST_CLUSTER": json.dumps(self.cluster),
            "SEMQ_TEST_WAITS": json.dumps(self.waits),
            "SEMQ_TEST_JOURNAL": str(self.journal.path),
            **self.more,
        }

    def run(self, *command_or_code: object) -> processes.Child:
        return self.start(*command_or_code, env=self.env)

    def qcluster(self) -> processes.Child:
        """A cluster that is ready for work."""
        cluster = self.run("django", "qcluster")
        cluster.wait_for_line("running.")
        return cluster

    def semq_run(self) -> processes.Child:
        daemon = self.run("django", "semq_run")
        daemon.wait_for_line("driving")
        return daemon


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "journal")


@pytest.fixture
def project(spawn, journal: Journal, settings, db) -> Iterator[Callable[..., Project]]:
    """Makes the project of a test. Its SEMQ holds in the test's own process too, which enqueues.

    The schedule's next run is an hour away: what moves, moves by wake-ups, polls and daemons alone.
    """

    def make(semq: dict[str, Any] | None = None, **kwargs: Any) -> Project:
        settings.SEMQ = semq or {}
        Schedule.objects.update(next_run=timezone.now() + timedelta(hours=1))
        return Project(spawn, journal, settings.SEMQ, **kwargs)

    return make


# ------------------------------------------------------------------------------ the drain that takes minutes


ITEMS = 4
"""One is done by each scheduled tick: three periods lie between the first and the last."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The drain begins with the session's first test of this folder and is looked at last."""
    items.sort(key=lambda item: "drain" in getattr(item, "fixturenames", ()))


@pytest.fixture(scope="session", autouse=True)
def drain_under_way(request, tmp_path_factory) -> Iterator[Project | None]:
    if not any("drain" in getattr(item, "fixturenames", ()) for item in request.session.items):
        yield None
        return
    # A database file of its own: the other tests empty theirs meanwhile.
    folder = tmp_path_factory.mktemp("drain")
    started: list[processes.Child] = []

    def start(*args: object, **kwargs: Any) -> processes.Child:
        started.append(processes.spawn(*args, **kwargs))
        return started[-1]

    project = Project(
        start,
        Journal(folder / "journal"),
        semq={"DRIVER": {"WAKE": False}},
        more={"TMPDIR": str(folder), "SEMQ_TEST_DB": "sqlite"},
    )
    project.run(
        f"""
        from django.core.management import call_command
        from django_semq import async_task
        call_command("migrate", verbosity=0)
        for number in range({ITEMS}):
            async_task("tests.e2e.application.work", f"order:{{number}}", key="acct-42", id=f"order:{{number}}")
        """
    ).finish()
    project.qcluster()
    yield project
    for child in started:
        child.clear_away()


@pytest.fixture
def drain(drain_under_way: Project | None) -> Project:
    """A project whose cluster drains a queue with nothing to help it but the schedule."""
    assert drain_under_way is not None
    return drain_under_way
