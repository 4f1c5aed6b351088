"""What a test does to the processes it starts, named in their environment: real commands, otherwise untouched."""

import json
import os

from django.apps import AppConfig
from django.utils.module_loading import import_string


class ConcurrencyConfig(AppConfig):
    name = "tests.concurrency"
    label = "concurrency"

    def ready(self) -> None:
        for fault, arguments in json.loads(os.environ.get("SEMQ_TEST_FAULTS", "{}")).items():
            import_string(f"tests.concurrency.faults.{fault}")(**arguments)
