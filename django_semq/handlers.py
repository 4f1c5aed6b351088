"""The application's functions, by the dotted paths of the settings.

Importing is lazy and cached by Python itself; a path that cannot be imported is `Misconfigured`, with what
to do, and `manage.py check` finds it before it is needed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from django.utils.module_loading import import_string

from django_semq import clock
from django_semq.exceptions import Misconfigured

COMPLAINT_EVERY = 60.0
"""Seconds: a function that misbehaves at every call must not fill the log."""

_quiet_until: dict[str, float] = {}


def resolve(path: str, setting: str) -> Callable[..., Any]:
    """The function of this dotted path. Raises `Misconfigured` if there is none, or it is `async def`."""
    try:
        handler = import_string(path)
    except ImportError as error:
        raise Misconfigured(f"{setting} is {path!r}, which cannot be imported ({error}). Correct the path.") from error
    if not callable(handler):
        raise Misconfigured(f"{setting} is {path!r}, which is not callable. Name a function.")
    if inspect.iscoroutinefunction(handler):
        raise Misconfigured(
            f"{setting} is {path!r}, which is async: the driver's threads have no event loop."
            " Name a plain function; it may call asyncio.run() itself."
        )
    return handler  # type: ignore[no-any-return]


def may_complain(path: str) -> bool:
    """Whether to log that this function misbehaves: once a minute and process."""
    now = clock.monotonic()
    if now < _quiet_until.get(path, 0.0):
        return False
    _quiet_until[path] = now + COMPLAINT_EVERY
    return True
