"""Pages for operators: they read every table, and act through the library's own verbs."""

from django_semq.admin import holder, queue

__all__ = ["holder", "queue"]
