"""The example project as a person meets it: one command starts it, its page puts work on it, Ctrl-C ends it."""

import os
import re
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest
from django.conf import settings
from django.db import connection

from tests.databases import MARIADB_URL, POSTGRES_URL, free_port
from tests.processes import Child, kill9

pytestmark = pytest.mark.processes

SETTINGS = {"DJANGO_SETTINGS_MODULE": "example_project.settings"}
END_SECONDS = 60
"""Longer than the example waits for its own processes before it kills them."""

WAIT_FOR_A_TASK = """
    import time
    from example_project.provider.models import Call
    while not Call.objects.filter(kind="reports").exists():
        time.sleep(0.1)
"""


# ---------------------------------------------------------------------------------------------------------- fixtures


@pytest.fixture
def database(tmp_path: Path, django_db_blocker) -> Iterator[str]:
    """The address of an empty database that goes with the test."""
    if settings.DATABASE == "sqlite":
        yield f"sqlite:///{tmp_path / 'example.sqlite3'}"
        return
    name = f"{settings.TEST_NAME}_example"
    variable, default = {
        "postgres": ("SEMQ_TEST_POSTGRES", POSTGRES_URL),
        "mariadb": ("SEMQ_TEST_MARIADB", MARIADB_URL),
    }[settings.DATABASE]

    def execute(*statements: str) -> None:
        with django_db_blocker.unblock(), connection._nodb_cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    execute(f"DROP DATABASE IF EXISTS {name}", f"CREATE DATABASE {name}")
    yield urlsplit(os.environ.get(variable, default))._replace(path=f"/{name}").geturl()
    execute(f"DROP DATABASE {name}")


class Example:
    """`python -m example_project`, and all that it starts."""

    def __init__(self, child: Child, port: int) -> None:
        self.child = child
        self.url = f"http://127.0.0.1:{port}"

    def wait_until_up(self) -> None:
        self.child.wait_for_line(self.url, timeout=90)

    def pid_of(self, name: str) -> int:
        line = self.child.wait_for_line("Running: ")
        return int(re.search(rf"{name} \(pid (\d+)\)", line)[1])

    def end(self, number: signal.Signals) -> int:
        """As a terminal does for Ctrl-C: the signal goes to the whole group."""
        os.killpg(self.child.pid, number)
        return self.child.wait(END_SECONDS)

    def assert_nothing_is_left(self) -> None:
        """All its processes inherited its output, which closes when the last of them has ended."""
        self.child._reader.join(10)
        assert not self.child._reader.is_alive(), "it left a process behind"

    def clear_away(self) -> None:
        if self.child.poll() is None:
            self.end(signal.SIGTERM)
        for line in self.child.lines:
            for pid in re.findall(r"\(pid (\d+)\)", line):
                with suppress(ProcessLookupError):
                    os.killpg(int(pid), signal.SIGKILL)


@pytest.fixture
def start(spawn, database: str) -> Iterator[Callable[[], Example]]:
    started: list[Example] = []

    def start() -> Example:
        port = free_port()
        child = spawn("example_project", "--port", port, env={"EXAMPLE_DATABASE_URL": database})
        started.append(Example(child, port))
        return started[-1]

    yield start
    for example in started:
        example.clear_away()


@pytest.fixture
def run(spawn, database: str) -> Callable[[str], Child]:
    """Runs code in a process of its own, as a part of the example project."""
    return lambda code: spawn(code, env=SETTINGS | {"EXAMPLE_DATABASE_URL": database})


class Visitor:
    """Does what the page in a browser does."""

    def __init__(self, url: str) -> None:
        self.client = httpx2.Client(base_url=url, trust_env=False, timeout=30)

    def __enter__(self) -> "Visitor":
        return self

    def __exit__(self, *args: object) -> None:
        self.client.close()

    def log_in(self) -> None:
        form = {"username": "demo", "password": "demo", "csrfmiddlewaretoken": self.token()}
        self.client.post(self.on_page(r'action="(/login/)"'), data=form)
        self.on_page("(Log out demo)")

    def enqueue(self, accounts: list[str], group: str, count: int) -> list[str]:
        items = [{"key": key, "group": group, "body": {"pages": 2}} for key in accounts for _ in range(count)]
        return self.send(self.on_page(r'items-url="([^"]+)"'), json=items, headers={"X-CSRFToken": self.token()})

    def enqueue_reports(self, accounts: list[str], count: int) -> list[str]:
        form = {"account": accounts, "count": count, "csrfmiddlewaretoken": self.token()}
        return self.send(self.on_page(r'reports-url="([^"]+)"'), data=form)

    def send(self, url: str, **content: object) -> list[str]:
        answer = self.client.post(url, **content)
        assert answer.status_code == 201, answer.text
        return answer.json()["queued"]

    def token(self) -> str:
        return self.on_page(r'name="csrfmiddlewaretoken" value="(\w+)"')

    def on_page(self, pattern: str) -> str:
        found = self.all_on_page(pattern)
        assert found, f"the page has no {pattern}"
        return found[0]

    def all_on_page(self, pattern: str) -> list[str]:
        return re.findall(pattern, self.client.get("/").raise_for_status().text)

    def state(self) -> dict[str, dict]:
        answer = self.client.get(self.on_page(r'state-url="([^"]+)"')).raise_for_status()
        return {account["name"]: account for account in answer.json()["accounts"]}

    def wait_until_gone(self, ids: list[str], timeout: float = 180) -> None:
        items = self.on_page(r'items-url="([^"]+)"')
        deadline = time.monotonic() + timeout
        left = list(ids)
        while left:
            assert time.monotonic() < deadline, f"{len(left)} of {len(ids)} items still wait or run: {self.state()}"
            if self.client.get(items, params={"id": left[-1]}).raise_for_status().json()["results"]:
                time.sleep(0.2)
            else:
                left.pop()


# ------------------------------------------------------------------------------------------------------------- tests


def test_what_the_page_enqueues_runs_once_and_the_provider_refuses_nothing(start, run):
    example = start()
    example.wait_until_up()
    with Visitor(example.url) as visitor:
        visitor.log_in()
        accounts = visitor.all_on_page(r'name="account" value="([\w-]+)"')
        ids = visitor.enqueue(accounts, "", 6)
        ids += visitor.enqueue(accounts, "exports", 2)
        ids += visitor.enqueue_reports(accounts, 2)
        visitor.wait_until_gone(ids)
        state = visitor.state()

    assert len(accounts) > 1
    assert sorted(state) == sorted(accounts)
    for account in state.values():
        assert 1 < account["peak"] <= account["limit"]
        assert account["refusals"] == 0
    assert example.end(signal.SIGINT) == 0
    example.assert_nothing_is_left()
    calls = run(f"""
        from example_project.provider.models import Call
        print(Call.objects.filter(reference__in={ids}).count(), "calls")
    """)
    assert calls.finish() == [f"{len(ids)} calls"]


@pytest.mark.databases("sqlite")
def test_it_can_be_stopped_before_it_is_up(start):
    example = start()
    example.child.wait_for_line("Preparing")

    assert example.end(signal.SIGTERM) == 0
    example.assert_nothing_is_left()


@pytest.mark.databases("sqlite")
def test_a_sigterm_to_its_whole_group_does_not_make_it_hang(start, run):
    example = start()
    example.wait_until_up()
    run(WAIT_FOR_A_TASK).finish()

    assert example.end(signal.SIGTERM) == 0
    example.assert_nothing_is_left()


@pytest.mark.databases("sqlite")
def test_a_process_of_it_that_dies_ends_all_and_leaves_nothing_behind(start, run):
    example = start()
    example.wait_until_up()
    run(WAIT_FOR_A_TASK).finish()
    # The workers that ran the task are not told of the death of their cluster, and would work on for ever.
    os.kill(example.pid_of("cluster"), signal.SIGKILL)

    assert example.child.wait(END_SECONDS) == 1
    example.assert_nothing_is_left()
    assert "The cluster ended with -9." in example.child.lines


@pytest.mark.databases("sqlite")
def test_a_taken_port_is_said_in_one_line(spawn):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        child = spawn("example_project", "--port", port)

        assert child.wait(30) == 1
    child.clear_away()
    (line,) = child.lines
    assert f"Port {port} is not free" in line
    assert "--port" in line


@pytest.mark.databases("sqlite")
def test_a_python_that_is_too_old_is_said_in_one_line(spawn):
    child = spawn("""
        import runpy, sys
        sys.version_info = (3, 10, 13)
        runpy.run_module("example_project", run_name="__main__")
    """)

    assert child.wait(30) == 1
    child.clear_away()
    assert child.lines == ["django_semq needs Python 3.11 or newer; this is 3.10."]


@pytest.mark.databases("sqlite")
def test_its_settings_and_migrations_have_nothing_to_complain_about(spawn):
    spawn("django", "check", "--fail-level", "WARNING", env=SETTINGS).finish()
    spawn("django", "makemigrations", "--check", "--dry-run", env=SETTINGS).finish()


@pytest.mark.databases("sqlite")
def test_the_provider_takes_only_so_much_from_however_many_processes(run):
    """Or its peak and its refusals would prove nothing."""
    run("from django.core.management import call_command; call_command('migrate', verbosity=0)").finish()
    callers = [
        run(f"""
        from example_project.provider import remote
        print("ready")
        input()
        for number in range(3):
            try:
                remote.start(f"{caller} {{number}}", account="acct-oslo", kind="", pages=10_000)
            except remote.TooManyCalls:
                print("429")
        """)
        for caller in range(4)
    ]
    for caller in callers:
        caller.wait_for_line("ready")
    for caller in callers:
        caller.tell("go")
    refusals = sum(caller.finish().count("429") for caller in callers)

    assert refusals == 4 * 3 - 4
    seen = run("""
        from example_project.provider.models import Account
        print(Account.objects.values_list("calls", "peak", "refusals").get())
    """)
    assert seen.finish() == ["(4, 5, 8)"]


@pytest.mark.databases("sqlite")
def test_the_permit_of_a_killed_process_comes_back_when_its_call_has_ended(run):
    run("from django.core.management import call_command; call_command('migrate', verbosity=0)").finish()
    first = run("""
        from django_semq import enqueue
        from django_semq.driver.tick import tick
        enqueue("acct-oslo", {"pages": 5})
        tick(threads=0)
        print("admitted")
        input()
    """)
    first.wait_for_line("admitted")
    kill9(first)
    second = run("""
        import time
        from django_semq import usage
        from django_semq.driver.tick import tick
        print("running", usage()["admitted"])
        while usage()["admitted"]:
            tick(threads=0)
            time.sleep(0.1)
        from example_project.provider.models import Account
        print("calls", Account.objects.get().calls)
    """)
    assert second.finish() == ["running 1", "calls 1"]
