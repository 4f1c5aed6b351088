"""A durable queue whose items wait for permits of named semaphores.

Everything public is here, loaded when it is first used, since models cannot be imported before the apps are.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from django_semq.driver.djangoq import async_task as async_task
    from django_semq.exceptions import HolderRefused as HolderRefused
    from django_semq.exceptions import InvalidClient as InvalidClient
    from django_semq.exceptions import InvalidItem as InvalidItem
    from django_semq.exceptions import InvalidLimit as InvalidLimit
    from django_semq.exceptions import Misconfigured as Misconfigured
    from django_semq.exceptions import SemqError as SemqError
    from django_semq.exceptions import TasksOnly as TasksOnly
    from django_semq.exceptions import TransactionOpen as TransactionOpen
    from django_semq.exceptions import TransportError as TransportError
    from django_semq.exceptions import UnknownClient as UnknownClient
    from django_semq.exceptions import UnknownQueue as UnknownQueue
    from django_semq.holder import clients as clients
    from django_semq.holder import semaphores as semaphores
    from django_semq.queue.items import default as _default
    from django_semq.queue.items import queues as queues

    acancel = _default.acancel
    acancel_many = _default.acancel_many
    aenqueue = _default.aenqueue
    aenqueue_many = _default.aenqueue_many
    arelease = _default.arelease
    arelease_many = _default.arelease_many
    astatus = _default.astatus
    ausage = _default.ausage
    cancel = _default.cancel
    cancel_many = _default.cancel_many
    enqueue = _default.enqueue
    enqueue_many = _default.enqueue_many
    release = _default.release
    release_many = _default.release_many
    status = _default.status
    usage = _default.usage

__version__ = "0.1.0"

_ERRORS = (
    "HolderRefused",
    "InvalidClient",
    "InvalidItem",
    "InvalidLimit",
    "Misconfigured",
    "SemqError",
    "TasksOnly",
    "TransactionOpen",
    "TransportError",
    "UnknownClient",
    "UnknownQueue",
)
_VERBS = ("cancel", "cancel_many", "enqueue", "enqueue_many", "release", "release_many", "status", "usage")

__all__ = ["async_task", "clients", "queues", "semaphores", *_ERRORS, *_VERBS, *(f"a{verb}" for verb in _VERBS)]


def __getattr__(name: str) -> Any:
    if name in _ERRORS:
        return getattr(import_module("django_semq.exceptions"), name)
    if name == "async_task":
        return import_module("django_semq.driver.djangoq").async_task
    if name in ("clients", "semaphores"):
        return import_module(f"django_semq.holder.{name}")
    items = import_module("django_semq.queue.items")
    if name == "queues":
        return items.queues
    if name in __all__:
        return getattr(items.default, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
