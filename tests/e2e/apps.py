"""Shortens the waits that a test cannot sit out, and writes down what happens outside the application's own code."""

import json
import os
from datetime import timedelta
from importlib import import_module

from django.apps import AppConfig


class EndToEndConfig(AppConfig):
    name = "tests.e2e"
    label = "e2e"

    def ready(self) -> None:
        from django_q.signals import pre_execute

        from django_semq.signals import item_released

        for path, seconds in json.loads(os.environ.get("SEMQ_TEST_WAITS", "{}")).items():
            module, _, name = path.rpartition(".")
            setattr(import_module(module), name, timedelta(seconds=seconds))
        pre_execute.connect(note_delivery, weak=False)
        item_released.connect(note_release, weak=False)


def note_delivery(*, task: dict, **kwargs: object) -> None:
    from tests.e2e.application import journal

    journal.note("delivered", func=task["func"], args=list(task["args"]))


def note_release(*, id: str, **kwargs: object) -> None:
    from tests.e2e.application import journal

    journal.note("released", id=id)
