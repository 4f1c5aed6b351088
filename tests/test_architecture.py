"""The rules of the house: they hold, and each of them would notice who breaks it.

A rule that a tool does not hold is a wish, and a rule whose pattern fits nothing is worse. So each is broken
here in a copy of the package, in every way that it is there for.
"""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent

DOWN = "Imports point down"
PROTOCOL = "The protocol is plain Python"
ARITHMETIC = "The holder's arithmetic is plain Python"
DJANGO_Q = "Only driver.djangoq knows django-q2"
HTTP = "Only transport.http knows the HTTP client"

FORBIDDEN_IMPORTS = [
    # What is below must not know what is above, floor by floor.
    (DOWN, "driver/stranger.py", "from django_semq.api import views"),
    (DOWN, "driver/stranger.py", "from django_semq.admin import base"),
    (DOWN, "driver/stranger.py", "import django_semq.management.commands.semq_run"),
    (DOWN, "queue/stranger.py", "from django_semq.driver import tick"),
    (DOWN, "holder/stranger.py", "from django_semq.driver import tick"),
    (DOWN, "transport/base.py", "from django_semq.queue import items"),
    (DOWN, "transport/base.py", "from django_semq.holder import service"),
    (DOWN, "handlers.py", "import django_semq.queue.pump"),
    (DOWN, "locking.py", "import django_semq.holder.ledger"),
    (DOWN, "rows.py", "from django_semq.queue import pump"),
    (DOWN, "signals.py", "import django_semq.queue.pump"),
    (DOWN, "models/stranger.py", "from django_semq import locking"),
    (DOWN, "models/stranger.py", "from django_semq import signals"),
    (DOWN, "models/stranger.py", "from django_semq.transport import base"),
    (DOWN, "conf.py", "from django_semq import models"),
    (DOWN, "clock.py", "from django_semq import handlers"),
    (DOWN, "exceptions.py", "from django_semq.models import Item"),
    (DOWN, "protocol/stranger.py", "from django_semq.models import Item"),
    # Siblings that must not know each other.
    (DOWN, "queue/stranger.py", "from django_semq.holder import service"),
    (DOWN, "holder/stranger.py", "from django_semq.queue import items"),
    (DOWN, "api/stranger.py", "from django_semq.admin import base"),
    (DOWN, "admin/stranger.py", "from django_semq.api import views"),
    (DOWN, "admin/stranger.py", "import django_semq.management.commands.semq_tick"),
    # Not even through a third one that is on no floor.
    (DOWN, "queue/stranger.py", "from django_semq.transport import local"),
    (DOWN, "holder/stranger.py", "from django_semq import invariants"),
    (DOWN, "models/stranger.py", "from django_semq import checks"),
    (PROTOCOL, "protocol/messages.py", "import django.utils.timezone"),
    (PROTOCOL, "protocol/stranger.py", "from rest_framework import serializers"),
    (PROTOCOL, "protocol/stranger.py", "from django_semq import conf"),
    (ARITHMETIC, "holder/ledger.py", "from django.db import models"),
    (ARITHMETIC, "holder/allocation.py", "from django_semq import conf"),
    (ARITHMETIC, "holder/allocation.py", "from django_semq.holder import limits"),
    (DJANGO_Q, "queue/stranger.py", "from django_q.tasks import async_task"),
    (DJANGO_Q, "driver/daemon.py", "import django_q"),
    (DJANGO_Q, "checks.py", "from django_q.models import Schedule"),
    (HTTP, "transport/base.py", "import httpx2"),
    (HTTP, "queue/stranger.py", "from httpx2 import Client"),
]

FORBIDDEN_NAMES = [
    ("queue/stranger.py", "import time\n\nnow = time.time()", "`time.time` is banned: Ask django_semq.clock"),
    ("queue/stranger.py", "from time import time", "`time.time` is banned"),
    ("driver/stranger.py", "from time import monotonic", "`time.monotonic` is banned"),
    ("driver/stranger.py", "import time\n\ntime.sleep(1)", "`time.sleep` is banned: Wait for a fact."),
    (
        "holder/stranger.py",
        "from datetime import datetime\n\nnow = datetime.now()",
        "`datetime.datetime.now` is banned",
    ),
    ("driver/stranger.py", "import datetime\n\nnow = datetime.datetime.now(datetime.UTC)", "`datetime.datetime.now`"),
    ("models/stranger.py", "from django.utils import timezone\n\nnow = timezone.now()", "`django.utils.timezone.now`"),
    ("queue/stranger.py", "from django.db.models.functions import Now", "`django.db.models.functions.Now` is banned"),
    (
        "queue/stranger.py",
        "from django.db import transaction\n\nwith transaction.atomic():\n    pass",
        "`django.db.transaction.atomic` is banned: Open transactions through django_semq.locking",
    ),
    ("holder/stranger.py", "from django.db.transaction import atomic", "`django.db.transaction.atomic` is banned"),
    ("queue/stranger.py", "import django_q", "`django_q` is banned: Only django_semq/driver/djangoq.py"),
    ("queue/stranger.py", "from django_q.tasks import async_task", "`django_q"),
    ("queue/stranger.py", "def send():\n    from django_q.tasks import async_task", "`django_q"),
    ("transport/stranger.py", "import httpx2", "`httpx2` is banned: Only django_semq/transport/http.py"),
    ("api/stranger.py", "from ..queue import items", "Prefer absolute imports over relative imports from parent"),
]


@pytest.fixture(scope="module")
def copy(tmp_path_factory) -> Path:
    house = tmp_path_factory.mktemp("house")
    shutil.copy(ROOT / "pyproject.toml", house)
    shutil.copytree(ROOT / "django_semq", house / "django_semq", ignore=shutil.ignore_patterns("__pycache__"))
    return house


@pytest.fixture
def house(copy) -> Iterator["House"]:
    house = House(copy)
    yield house
    house.mend()


class House:
    """The copy, in which files can be written, and are mended after each test."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.before: dict[Path, str | None] = {}

    def add(self, file: str, code: str) -> None:
        """Append code to a file, which may be a new one."""
        path = self.root / "django_semq" / file
        self.before[path] = path.read_text() if path.exists() else None
        path.write_text(f"{self.before[path] or ''}\n{code}\n")

    def mend(self) -> None:
        for path, text in self.before.items():
            if text is None:
                path.unlink()
            else:
                path.write_text(text)

    def broken_contracts(self) -> list[str]:
        return [line.removesuffix(" BROKEN") for line in self.run("lint-imports", "--no-cache") if "BROKEN" in line]

    def banned(self) -> list[str]:
        return self.run("ruff", "check", "--no-cache", "--select", "TID", "--output-format", "concise", ".")

    def run(self, program: str, *arguments: str) -> list[str]:
        done = subprocess.run([BIN / program, *arguments], cwd=self.root, capture_output=True, text=True)
        assert done.returncode in (0, 1), done.stderr
        return done.stdout.splitlines()


def test_the_house_keeps_its_rules(house):
    assert house.broken_contracts() == []
    assert house.banned() == ["All checks passed!"]


@pytest.mark.parametrize(("contract", "file", "line"), FORBIDDEN_IMPORTS)
def test_a_forbidden_import_breaks_its_contract(house, contract, file, line):
    house.add(file, line)
    assert contract in house.broken_contracts()


@pytest.mark.parametrize(("file", "code", "complaint"), FORBIDDEN_NAMES)
def test_a_forbidden_name_is_told_with_what_to_use_instead(house, file, code, complaint):
    house.add(file, code)
    assert any(complaint in line and file in line for line in house.banned())


@pytest.mark.parametrize(
    ("file", "code"),
    [
        ("clock.py", "now = datetime.now(UTC)"),
        ("locking.py", "atomic = transaction.atomic"),
        ("driver/djangoq.py", "import django_q"),
    ],
)
def test_each_name_has_a_place_where_it_is_at_home(house, file, code):
    house.add(file, code)
    assert house.banned() == ["All checks passed!"]
