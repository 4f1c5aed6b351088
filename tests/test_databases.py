"""The settings say what they mean on each database."""

import pytest
from django.conf import settings
from django.db import OperationalError, connection, transaction

from tests import databases


def fetch(sql: str) -> object:
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchone()[0]


@pytest.mark.django_db
def test_the_database_is_the_one_that_was_asked_for():
    assert fetch("SELECT 1") == 1
    vendors = {"sqlite": "sqlite", "postgres": "postgresql", "mariadb": "mysql"}
    assert connection.vendor == vendors[settings.DATABASE]
    assert settings.TEST_NAME in str(connection.settings_dict["NAME"])


@pytest.mark.databases("sqlite")
@pytest.mark.django_db
def test_sqlite_writes_ahead_and_waits_for_its_turn():
    assert fetch("PRAGMA journal_mode") == "wal"
    assert fetch("PRAGMA synchronous") == 1
    assert fetch("PRAGMA busy_timeout") == 30_000


@pytest.mark.databases("sqlite")
@pytest.mark.django_db(transaction=True)
def test_a_sqlite_transaction_takes_the_turn_to_write_when_it_begins():
    other = connection.copy()
    try:
        with transaction.atomic(), other.cursor() as cursor:
            cursor.execute("PRAGMA busy_timeout = 0")
            with pytest.raises(OperationalError, match="locked"):
                cursor.execute("BEGIN IMMEDIATE")
    finally:
        other.close()


@pytest.mark.databases("mariadb")
@pytest.mark.django_db
def test_mariadb_reads_what_is_committed():
    # MariaDB 10 and MySQL 8 name it differently.
    variables = "information_schema.session_variables"
    named = "variable_name IN ('tx_isolation', 'transaction_isolation')"
    assert fetch(f"SELECT variable_value FROM {variables} WHERE {named}") == "READ-COMMITTED"
    assert fetch("SELECT @@character_set_connection") == "utf8mb4"


def test_a_server_that_is_nowhere_is_named_with_the_reason(monkeypatch, closed_port):
    monkeypatch.setenv("SEMQ_TEST_MARIADB", f"mysql://root@127.0.0.1:{closed_port}/")
    monkeypatch.setattr(databases.shutil, "which", lambda name, path: None)
    reason = r"127\.0\.0\.1.*; mariadb-install-db is not installed"
    with pytest.raises(databases.Missing, match=reason), databases.serving("mariadb"):
        pass


@pytest.fixture
def closed_port() -> int:
    return databases.free_port()
