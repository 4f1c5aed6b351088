"""The databases of the simulated projects: real ones of the kind the tests run on, made once in a process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.conf import settings
from django.db import connections
from django.db.migrations.executor import MigrationExecutor

ONE, TWO = "sim_one", "sim_two"
ALIASES = (ONE, TWO)


@contextmanager
def databases() -> Iterator[None]:
    """Both projects' databases, with the tables of the library alone, gone at the end. Safe to enter once more."""
    if ONE in connections.settings:
        yield
        return
    for alias in ALIASES:
        _configure(alias)
        # Private, because the public one runs the migrations of all apps, which nothing here needs.
        name = connections[alias].creation._create_test_db(verbosity=0, autoclobber=True)
        connections[alias].close()
        connections[alias].settings_dict["NAME"] = name
        executor = MigrationExecutor(connections[alias])
        executor.migrate([node for node in executor.loader.graph.leaf_nodes() if node[0] == "django_semq"])
    try:
        yield
    finally:
        for alias in ALIASES:
            connection = connections[alias]
            name, connection.settings_dict["NAME"] = (
                connection.settings_dict["NAME"],
                connections.settings["default"]["NAME"],
            )
            connection.close()
            connection.creation._destroy_test_db(name, verbosity=0)
            del connections[alias], connections.settings[alias]


def _configure(alias: str) -> None:
    like = settings.DATABASES["default"]
    test = {**like["TEST"], "NAME": f"{like['TEST']['NAME']}_{alias}"}
    if settings.DATABASE == "sqlite":
        test["NAME"] = ":memory:"
    new = {**like, "TEST": test}
    if settings.DATABASE != "sqlite":
        new["NAME"] = like["NAME"]
    connections.settings = connections.configure_settings({**connections.settings, alias: new})
