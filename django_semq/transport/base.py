"""What the client needs from a holder, wherever it lives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import cache
from typing import Any

from django.core.signals import setting_changed
from django.utils.module_loading import import_string

from django_semq import conf
from django_semq.exceptions import HolderRefused, Misconfigured, TransportError
from django_semq.protocol.messages import Envelope, Reply

Answer = Reply | TransportError | HolderRefused


class HolderTransport(ABC):
    """A way to a holder.

    An inline transport runs the holder in the caller's transaction and must be called inside one; any other
    must be called with no transaction of ours open. It is used by several threads at once.
    """

    inline: bool = False

    def __init__(self, alias: str) -> None:
        self.alias = alias

    @abstractmethod
    def exchange(self, messages: Sequence[Envelope], *, now: datetime) -> list[Answer]:
        """One answer for each message, in order. Doubling a message is safe: its counts are cumulative."""

    @contextmanager
    def conversation(self, *, now: datetime) -> Iterator[Callable[[Sequence[Envelope]], list[Answer]]]:
        """Several exchanges in a row. An inline holder keeps what it has read, and writes once, at the end."""
        yield lambda messages: self.exchange(messages, now=now)

    def prepare(self, keys: Sequence[str], *, now: datetime) -> None:  # noqa: B027 — most holders need nothing
        """Make ready what an inline holder needs for these keys, outside any transaction. Safe to call twice."""


@cache
def transport_of(alias: str) -> HolderTransport:
    """The transport of a queue, by its dotted path. Raises `Misconfigured` if it cannot be made."""
    queue = conf.queue(alias)
    try:
        made = import_string(queue.transport)(alias, **queue.transport_options)
    except (ImportError, TypeError) as error:
        raise Misconfigured(
            f"SEMQ['QUEUES'][{alias!r}]['TRANSPORT'] is {queue.transport!r}, which cannot be made ({error})."
            " Correct the path or TRANSPORT_OPTIONS."
        ) from error
    if not isinstance(made, HolderTransport):
        raise Misconfigured(
            f"SEMQ['QUEUES'][{alias!r}]['TRANSPORT'] is {queue.transport!r}, which is no HolderTransport."
        )
    return made


def _reset(*, setting: str, **kwargs: Any) -> None:
    if setting == "SEMQ":
        transport_of.cache_clear()


setting_changed.connect(_reset, dispatch_uid="django_semq.transport.base")
