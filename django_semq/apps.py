"""Wires the app: checks, the pump's ear for nudges, wake-ups, and the schedule after a migration."""

from __future__ import annotations

from django.apps import AppConfig
from django.db.models.signals import post_migrate, pre_delete
from django.utils.translation import gettext_lazy as _


class SemqConfig(AppConfig):
    name = "django_semq"
    verbose_name = _("Semaphore queue")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from django_semq import checks  # noqa: F401 — importing registers them
        from django_semq.driver import djangoq
        from django_semq.models import Item
        from django_semq.queue import protection
        from django_semq.signals import driver_wanted

        pre_delete.connect(protection.protect, sender=Item, dispatch_uid="django_semq.queue.protection")
        driver_wanted.connect(djangoq.wake, dispatch_uid="django_semq.driver.djangoq")
        post_migrate.connect(djangoq.install_schedule, sender=self, dispatch_uid="django_semq.driver.djangoq")
