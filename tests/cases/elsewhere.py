"""Settings of a project whose queue has a database of its own, and django-q2 another one."""

import os
from pathlib import Path

from tests.settings import *  # noqa: F403

FOLDER = Path(os.environ["SEMQ_TEST_FOLDER"])
DATABASES = {
    alias: {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": FOLDER / f"{alias}.sqlite3",
        "OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 30},
    }
    for alias in ("default", "queue", "cluster")
}
DATABASE_ROUTERS = [f"{__name__}.Router"]
HOMES = {"django_semq": "queue", "django_q": "cluster"}
ROOT_URLCONF = "tests.urls"
SEMQ = {"QUEUES": {"default": {"ADMIT": f"{__name__}.admit", "FINISHED": f"{__name__}.finished"}, "tasks": {}}}
Q_CLUSTER = {"name": "semq-tests", "orm": "cluster", "workers": 1, "timeout": 90, "retry": 300}

handed_over: list[str] = []


class Router:
    def db_for_read(self, model, **hints):
        return HOMES.get(model._meta.app_label)

    db_for_write = db_for_read

    def allow_migrate(self, db, app_label, **hints):
        return db == HOMES.get(app_label, "default")


def admit(items):
    handed_over.extend(item.id for item in items)


def finished(ids):
    return [uid for uid in ids if uid.startswith("done")]
