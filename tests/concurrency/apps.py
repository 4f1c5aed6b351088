"""What a test does to the processes it starts, named in their environment: real commands, otherwise untouched."""

import json
import os

from django.apps import AppConfig
from django.db.backends.signals import connection_created
from django.utils.module_loading import import_string


class ConcurrencyConfig(AppConfig):
    name = "tests.concurrency"
    label = "concurrency"

    def ready(self) -> None:
        for fault, arguments in json.loads(os.environ.get("SEMQ_TEST_FAULTS", "{}")).items():
            import_string(f"tests.concurrency.faults.{fault}")(**arguments)
        connection_created.connect(name_the_session, weak=False)


def name_the_session(*, connection, **kwargs) -> None:
    """So that a test can tell on PostgreSQL which process a session belongs to."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SELECT set_config('application_name', %s, false)", [f"pid {os.getpid()}"])
