"""Every error this library raises on purpose. The text names the field, the value and what to do."""

from __future__ import annotations

from collections.abc import Sequence

from django.core.exceptions import ImproperlyConfigured

from django_semq.protocol.names import shown


def described(error: BaseException) -> str:
    """An error for a column: at most 2000 characters of it, and none that a database refuses."""
    try:
        text = f"{type(error).__name__}: {error}"[:2000]
    except Exception:  # A broken __str__.
        text = type(error).__name__
    return text.encode(errors="backslashreplace").decode().replace("\0", "\\x00")


class SemqError(Exception):
    """The base of all errors of django_semq."""


class InvalidItem(SemqError, ValueError):
    """An item that cannot be enqueued. Nothing of the call was stored."""

    def __init__(self, text: str, *, field: str, index: int | None = None) -> None:
        super().__init__(text if index is None else f"item {index}: {text}")
        self.field = field
        self.index = index
        """Position in the call's list, None for a call with one item."""


class TasksOnly(SemqError):
    """A queue without ADMIT takes its items from async_task() alone. Nothing was stored."""


class InvalidLimit(SemqError, ValueError):
    """A limit or ceiling that is neither a whole number from 0 to 2147483647 nor None (unlimited)."""


class InvalidClient(SemqError, ValueError):
    """A client that cannot be introduced under this name."""


class UnknownClient(SemqError, LookupError):
    """No client of this name has a token."""


class UnknownQueue(SemqError, LookupError):
    """No queue of this alias is configured in SEMQ["QUEUES"]."""


class Misconfigured(SemqError, ImproperlyConfigured):
    """A setting is missing or wrong. `manage.py check` lists all of them."""


class TransactionOpen(SemqError):
    """A transaction is open where none may be: ours around application code, or the caller's around our own."""


class TransportError(SemqError):
    """The holder could not be asked. The message is sent again, with a growing delay."""


class HolderRefused(SemqError):
    """The holder understood and refused. An operator has to act; asked again every 60 s, nothing is dropped."""


class Unprepared(SemqError):
    """An inline holder lacks rows or fresh limits for these keys: roll back, call `prepare`, do it again."""

    def __init__(self, keys: Sequence[str]) -> None:
        super().__init__(f"not prepared: {', '.join(shown(key) for key in keys[:5])}")
        self.keys = list(keys)


class Held(SemqError):
    """Another transaction holds these keys at an inline holder: roll back, and do it again without them."""

    def __init__(self, keys: Sequence[str]) -> None:
        super().__init__(f"held by another transaction: {', '.join(shown(key) for key in keys[:5])}")
        self.keys = list(keys)
