"""Projects that are set up in another way than these tests' own, each in a process of its own."""

import pytest

pytestmark = [pytest.mark.processes, pytest.mark.databases("sqlite")]  # They make their databases themselves.


@pytest.fixture
def project(spawn, tmp_path):
    """Runs a command or code in the project of these settings."""

    def run(settings, *what):
        env = {"DJANGO_SETTINGS_MODULE": f"tests.cases.{settings}", "SEMQ_TEST_FOLDER": str(tmp_path)}
        return spawn(*what, env=env).finish(60)

    return run


def test_a_queue_may_have_a_database_of_its_own(project):
    """Nothing of ours is made or done in another. (B101)"""
    assert project("elsewhere", MIGRATE + LIFE)[-1] == "well"
    assert project("elsewhere", "django", "semq_doctor") == ["all counters are right"]


MIGRATE = """
from django.apps import apps
from django.core.management import call_command
from django.db import connections

for alias in ("default", "queue", "cluster"):
    call_command("migrate", database=alias, verbosity=0)
ours = {model._meta.db_table for model in apps.get_app_config("django_semq").get_models()}
assert {alias: ours & set(connections[alias].introspection.table_names()) for alias in connections} == {
    "default": set(), "queue": ours, "cluster": set()
}
call_command("check", databases=["default", "queue", "cluster"], fail_level="WARNING")
"""

LIFE = """
from contextlib import suppress
from datetime import timedelta
from django.contrib.auth.models import User
from django.db import transaction
from django.test import Client
from django.test.utils import override_settings
from django_q.models import OrmQ, Schedule
from django_semq import async_task, cancel, clock, enqueue, enqueue_many, release, semaphores, status, usage
from django_semq.driver import djangoq
from django_semq.driver.tick import tick
from django_semq.models import Item
from tests.cases import elsewhere

# In the caller's transaction of another database it is stored at once, and in one of its own with it.
with suppress(ZeroDivisionError), transaction.atomic():
    enqueue("k", {}, id="kept")
    1 / 0
with suppress(ZeroDivisionError), transaction.atomic(using="queue"):
    enqueue("k", {}, id="lost")
    1 / 0
with transaction.atomic(), transaction.atomic(using="queue"):
    enqueue("k", {}, id="done")
assert status("kept").state == "admitted"
assert status("lost") is None
tick(threads=0)
assert elsewhere.handed_over == ["kept"]
assert release("kept")
tick(threads=0)
assert elsewhere.handed_over == ["kept", "done"]
now = clock.now
clock.now = lambda: now() + timedelta(seconds=61)
tick(threads=0)
assert status("done") is None
semaphores.set_limit("k", 0)
enqueue("k", {}, id="waits")
assert cancel("waits")
async_task("builtins.len", [], key="tasks", id="task", queue="tasks")
djangoq.tick()
assert OrmQ.objects.count() >= 1
djangoq.run(*Item.objects.filter(uid="task").values_list("pk", "attempt").get())
assert Schedule.objects.count() == 1
assert usage() == {"queued": 0, "claiming": 0, "admitted": 0}

User.objects.create_superuser("operator")
client = Client()
client.force_login(User.objects.get())
enqueue("k", {}, id="waits")
from django.contrib import admin
for model in admin.site._registry:
    if model._meta.app_label == "django_semq":
        answer = client.get(f"/admin/django_semq/{model._meta.model_name}/", headers={"host": "localhost"})
        assert answer.status_code == 200, (model, answer.status_code)
row = Item.objects.get().pk
answer = client.post(
    "/admin/django_semq/item/",
    {"action": "cancel_items", "_selected_action": [row], "confirmed": "yes"},
    headers={"host": "localhost"},
)
assert answer.status_code == 302, answer.content
assert status("waits") is None
answer = client.post("/semq/items/", {"key": "k", "body": 1}, "application/json", headers={"host": "localhost"})
assert answer.status_code == 201, answer.content
print("well")
"""


def test_other_settings_of_a_project_make_no_migrations(project):
    """And those there are go back and forth. (B105)"""
    assert project("other", ROWS)[-1] == "well"


ROWS = """
from django.core.management import call_command
from django_semq import enqueue
from django_semq.models import Item

call_command("makemigrations", "django_semq", check_changes=True, dry_run=True)
for target in ([], ["django_semq", "zero"], []):
    call_command("migrate", *target, verbosity=0)
    if not target:
        enqueue("k", {}, id="a", group="g")
        assert Item.objects.count() == 1
print("well")
"""
