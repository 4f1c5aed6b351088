"""The application's functions, by the dotted paths of the settings.

Importing is lazy and cached by Python itself; a path that cannot be imported is `Misconfigured`, with what
to do, and `manage.py check` finds it before it is needed.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import copy_context
from typing import Any

from django.db import connections
from django.utils.module_loading import import_string

from django_semq import clock
from django_semq.exceptions import Misconfigured

COMPLAINT_EVERY = 60.0
"""Seconds: a function that misbehaves at every call must not fill the log."""

ANSWER_WITHIN = 5.0
"""Seconds. It holds up a driver, or somebody's request."""

_quiet_until: dict[str, float] = {}
_hung_until: dict[str, float] = {}


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


def answer(path: str, setting: str, *args: object) -> Any:
    """What a function of the project says that only answers a question, such as LIMITS: nobody waits for long.

    Raises `Misconfigured`, what the function raises, and `TimeoutError` if it takes too long; then it is not called for
    a minute, since Python cannot end its thread.
    """
    function = resolve(path, setting)
    if clock.monotonic() < _hung_until.get(path, 0.0):
        raise TimeoutError(f"{path} hung, and is asked again later")
    said: Future[Any] = Future()

    def ask() -> None:
        try:
            said.set_result(function(*args))
        except BaseException as error:
            said.set_exception(error)
        finally:
            connections.close_all()

    threading.Thread(target=copy_context().run, args=[ask], name="semq-answer", daemon=True).start()
    try:
        return said.result(ANSWER_WITHIN)
    except TimeoutError:
        if said.done():
            raise  # Its own.
        _hung_until[path] = clock.monotonic() + COMPLAINT_EVERY
        raise TimeoutError(f"{path} did not answer within {ANSWER_WITHIN:g} s") from None


def may_complain(path: str) -> bool:
    """Whether to log that this function misbehaves: once a minute and process."""
    now = clock.monotonic()
    if now < _quiet_until.get(path, 0.0):
        return False
    _quiet_until[path] = now + COMPLAINT_EVERY
    return True
