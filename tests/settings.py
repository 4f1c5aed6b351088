"""The project the tests run in, on the database that SEMQ_TEST_DB names.

SEMQ_TEST_DB        sqlite (default), postgres or mariadb
SEMQ_TEST_NAME      the test database's name, so that several runs do not meet (default: test_semq)
SEMQ_TEST_POSTGRES  SEMQ_TEST_MARIADB    where the servers are
SEMQ_TEST_CHILD     set for the processes a test starts: they join the test database instead of making one
"""

import os
import tempfile
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tests.databases import MARIADB_URL, POSTGRES_URL

DATABASE = os.environ.get("SEMQ_TEST_DB", "sqlite")
TEST_NAME = os.environ.get("SEMQ_TEST_NAME", "test_semq")
IS_CHILD = os.environ.get("SEMQ_TEST_CHILD") == "1"


def sqlite() -> dict:
    # A file, for a child process cannot see another's memory.
    folder = Path(tempfile.gettempdir())
    return {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": folder / f"{TEST_NAME}_unused.sqlite3",
        "TEST": {"NAME": folder / f"{TEST_NAME}.sqlite3"},
        "OPTIONS": {
            # A transaction that begins by reading cannot wait for its turn to write: it fails at once with
            # "database is locked". IMMEDIATE takes the turn first, and `timeout` is how long it waits.
            "transaction_mode": "IMMEDIATE",
            "timeout": 30,
            # Readers do not stop the writer, and a commit does not wait for the disk.
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
        },
    }


def server(engine: str, url: str, **options: str) -> dict:
    at = urlsplit(url)
    return {
        "ENGINE": f"django.db.backends.{engine}",
        "NAME": at.path.lstrip("/"),
        "HOST": at.hostname or "",
        "PORT": at.port or "",
        "USER": unquote(at.username or ""),
        "PASSWORD": unquote(at.password or ""),
        "TEST": {"NAME": TEST_NAME},
        "OPTIONS": options,
    }


def postgres() -> dict:
    return server("postgresql", os.environ.get("SEMQ_TEST_POSTGRES", POSTGRES_URL))


def mariadb() -> dict:
    import pymysql

    pymysql.install_as_MySQLdb()
    return server(
        "mysql",
        os.environ.get("SEMQ_TEST_MARIADB", MARIADB_URL),
        charset="utf8mb4",
        isolation_level="read committed",
    )


DATABASES = {"default": {"sqlite": sqlite, "postgres": postgres, "mariadb": mariadb}[DATABASE]()}
if IS_CHILD:
    DATABASES["default"]["NAME"] = DATABASES["default"]["TEST"]["NAME"]

INSTALLED_APPS = [
    "django.contrib.contenttypes",
    "django.contrib.auth",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.admin",
    "rest_framework",
    "django_q",
    "django_semq",
]

MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
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

SEMQ = {"QUEUES": {"default": {"ADMIT": "tests.application.admit"}}}

Q_CLUSTER = {
    "name": "semq-tests",
    "orm": "default",
    "workers": 2,
    "timeout": 90,
    "retry": 300,
    "poll": 0.2,
    "save_limit": 250,
    "catch_up": False,
}

ROOT_URLCONF = "tests.urls"
SECRET_KEY = "only for tests"
ALLOWED_HOSTS = ["testserver", "127.0.0.1", "localhost"]
STATIC_URL = "static/"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
# Made to be fast, which no real one may be.
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
