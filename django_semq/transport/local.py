"""The holder in this project's own database: request, round, claim and confirmation are one transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime

from django_semq import conf
from django_semq.exceptions import Misconfigured
from django_semq.holder import service
from django_semq.models import Item, Semaphore
from django_semq.protocol.messages import Envelope
from django_semq.rows import alias_of
from django_semq.transport.base import Answer, HolderTransport


class LocalTransport(HolderTransport):
    """Calls the holder's service in the pump's transaction. A crash rolls both halves back together."""

    inline = True

    def exchange(self, messages: Sequence[Envelope], *, now: datetime) -> list[Answer]:
        with self.conversation(now=now) as exchange:
            return exchange(messages)

    @contextmanager
    def conversation(self, *, now: datetime) -> Iterator[Callable[[Sequence[Envelope]], list[Answer]]]:
        if alias_of(Item) != alias_of(Semaphore):
            raise Misconfigured(
                f"Item is written to database {alias_of(Item)!r} and Semaphore to {alias_of(Semaphore)!r}."
                " LocalTransport needs both in one: correct DATABASE_ROUTERS."
            )
        books = service.Books(now)
        yield lambda messages: list(books.exchange(messages))
        books.write()

    def prepare(self, keys: Sequence[str], *, now: datetime) -> None:
        service.prepare(keys, client_id=conf.queue(self.alias).client_id, queue=self.alias, now=now)
