"""The whole example in the care of one process: a web server, a django-q2 cluster, a driver, and load to look at.

Each child is in a session of its own: Ctrl-C, or a supervisor's SIGTERM to the whole group, reaches this process
alone, which then tells each child's main process to end. A cluster whose inner processes get the SIGTERM too waits
for them for ever.
"""

import argparse
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import django
from django.core.management import call_command
from django.db import close_old_connections

MANAGE = Path(__file__).resolve().parent.parent / "manage.py"
HOST = "127.0.0.1"

LOAD_SECONDS = 120
STOP_SECONDS = 20
"""A tick and a task under way end within a few; a process that needs more hangs."""


def main() -> int:
    port = arguments().port
    if problem := port_problem(port):
        print(f"Port {port} is not free ({problem}): choose another with --port.", file=sys.stderr)
        return 1
    stop = Stop()
    os.environ["DJANGO_SETTINGS_MODULE"] = "example_project.settings"
    django.setup()
    say("Preparing the database")
    prepare()
    children: dict[str, subprocess.Popen] = {}
    try:
        for name, command in {
            "web server": ["runserver", "--noreload", "--skip-checks", f"{HOST}:{port}"],
            "cluster": ["qcluster"],
            "driver": ["semq_run"],
        }.items():
            children[name] = start(command)
        return attend(children, port, stop)
    finally:
        say("Stopping; a second Ctrl-C waits for nothing")
        end(children, stop)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m example_project", description="Start the example project.")
    parser.add_argument("--port", type=port_number, default=8000, help="where its page is (default: 8000)")
    return parser.parse_args()


def port_number(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < 2**16:
        raise argparse.ArgumentTypeError(f"{text} is no port; give a number from 1 to 65535")
    return int(text)


def port_problem(port: int) -> str | None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # As the web server does.
        try:
            probe.bind((HOST, port))
        except OSError as error:
            return error.strerror
    return None


class Stop:
    """Counts the requests to stop: Ctrl-C, SIGTERM, a terminal that was closed. A second one waits for nothing."""

    def __init__(self) -> None:
        self.requests = 0
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self.on_signal)

    def on_signal(self, number: int, frame: object) -> None:
        self.requests += 1


def prepare() -> None:
    """Tables, and somebody who may do everything."""
    from django.contrib.auth import get_user_model

    call_command("migrate", verbosity=0)
    demo, _ = get_user_model().objects.get_or_create(username="demo")
    demo.is_staff = demo.is_superuser = True
    if not demo.check_password("demo"):
        demo.set_password("demo")
    demo.save()


def start(command: list[str]) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, MANAGE, *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,  # Greetings only; what goes wrong comes on the other one.
        start_new_session=True,
    )


def attend(children: dict[str, subprocess.Popen], port: int, stop: Stop) -> int:
    """Put load on it until its time is over, and watch until somebody stops it or a child fails."""
    from example_project.provider.load import top_up

    is_answering = False
    load_ends = time.monotonic() + LOAD_SECONDS
    while not stop.requests:
        for name, child in children.items():
            if child.poll() is not None:
                print(f"The {name} ended with {child.returncode}.", file=sys.stderr)
                return 1
        if not is_answering:
            is_answering = answers(port)
            if is_answering:
                greet(port, children)
        if load_ends is not None and time.monotonic() < load_ends:
            close_old_connections()
            top_up()
        elif load_ends is not None:
            load_ends = None
            say("The load has ended. Put more on it on the page.")
        time.sleep(0.5)
    return 0


def answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection((HOST, port), timeout=1):
        return True
    return False


def greet(port: int, children: dict[str, subprocess.Popen]) -> None:
    say(
        f"""
  The example:  http://{HOST}:{port}/             log in with demo / demo
  The admin:    http://{HOST}:{port}/admin/
  The API:      http://{HOST}:{port}/semq/items/

For {LOAD_SECONDS} seconds it has work for three accounts. Ctrl-C stops all of it.
Running: {", ".join(f"{name} (pid {child.pid})" for name, child in children.items())}"""
    )


def end(children: dict[str, subprocess.Popen], stop: Stop) -> None:
    for child in children.values():
        child.terminate()
    patience = time.monotonic() + STOP_SECONDS
    while stop.requests < 2 and time.monotonic() < patience:
        if all(child.poll() is not None for child in children.values()):
            break
        time.sleep(0.05)
    for name, child in children.items():
        if child.poll() is None:
            print(f"The {name} did not end and is killed.", file=sys.stderr)
        if child.returncode != 0:
            # With all that it has started: it can no longer do that itself.
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def say(text: str) -> None:
    print(text, flush=True)
