"""Wires the app: checks, the pump's ear for nudges, and the schedule after a migration."""

from __future__ import annotations

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class SemqConfig(AppConfig):
    name = "django_semq"
    verbose_name = _("Semaphore queue")
    default_auto_field = "django.db.models.BigAutoField"
