"""A project with a queue in front of a provider that takes only so much at once.

EXAMPLE_DATABASE_URL   another database than the file beside these settings:
                       sqlite:////tmp/example.sqlite3
                       postgresql://user:password@host:5432/name
                       mysql://user:password@host:3306/name   (MySQL and MariaDB)
"""

import os
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

BASE_DIR = Path(__file__).resolve().parent


def database(url: str) -> dict:
    at = urlsplit(url)
    if at.scheme == "sqlite":
        return sqlite(unquote(at.path.removeprefix("/")))
    if at.scheme in ("postgres", "postgresql"):
        return server("postgresql", at)
    if at.scheme in ("mysql", "mariadb"):
        if find_spec("MySQLdb") is None:
            import pymysql  # It installs without a compiler; mysqlclient is the faster one.

            pymysql.install_as_MySQLdb()
        return server("mysql", at) | {"OPTIONS": {"charset": "utf8mb4", "isolation_level": "read committed"}}
    raise SystemExit(f"EXAMPLE_DATABASE_URL starts with sqlite://, postgresql:// or mysql://, not {at.scheme}://")


def sqlite(path: str) -> dict:
    return {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": path,
        "OPTIONS": {
            # Take the turn to write when the transaction begins, and wait for it: a transaction that begins by
            # reading fails at once with "database is locked" when another one has written meanwhile.
            "transaction_mode": "IMMEDIATE",
            "timeout": 20,
            # Readers do not stop the writer, and a commit does not wait for the disk.
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
        },
    }


def server(engine: str, at) -> dict:
    return {
        "ENGINE": f"django.db.backends.{engine}",
        "NAME": at.path.removeprefix("/"),
        "HOST": at.hostname or "",
        "PORT": at.port or "",
        "USER": unquote(at.username or ""),
        "PASSWORD": unquote(at.password or ""),
    }


DATABASES = {"default": database(os.environ.get("EXAMPLE_DATABASE_URL", f"sqlite:///{BASE_DIR / 'db.sqlite3'}"))}

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "rest_framework",
    "django_q",
    "django_semq",
    "example_project.provider",
]

# The queue, the holder of the limits and the driver. All that is not here has a default.
SEMQ = {
    "QUEUES": {
        # Calls of the provider. Whatever a killed process did not give back, `finished` finds within seconds.
        "default": {
            "ADMIT": "example_project.provider.jobs.admit",
            "FINISHED": "example_project.provider.jobs.finished",
            "FINISHED_CHECK": 5,
        },
        # No ADMIT: its items are functions that run as django-q2 tasks, enqueued with `async_task`.
        "tasks": {},
    },
    "HOLDER": {
        # What the provider allows each account, in all and of one kind; see provider/remote.py.
        "RULES": {"acct-*": {"limit": 4, "groups": {"exports": 1, "reports": 2}}},
    },
    # A cluster that is told to stop waits for the tick under way.
    "DRIVER": {"TICK_SECONDS": 5},
}

Q_CLUSTER = {
    "name": "example",
    "orm": "default",
    "workers": 2,
    "queue_limit": 2,
    "timeout": 90,  # More than TICK_SECONDS + ATTEMPT_TIMEOUT, which a tick may take.
    "retry": 200,  # More than twice the timeout: it counts from when a task is fetched, one round too early.
    "catch_up": False,
    "log_level": "WARNING",
}

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

# The page asks every second: only what went wrong is worth a line.
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "loggers": {"django.server": {"level": "ERROR", "propagate": True}},
}

ROOT_URLCONF = "example_project.urls"
LOGIN_URL = "provider:login"
LOGIN_REDIRECT_URL = "provider:page"
STATIC_URL = "static/"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
# It answers on this machine only, to whoever sits before it.
DEBUG = True
SECRET_KEY = "of an example that anybody may read"
