"""Who may ask this holder from elsewhere: identities, their tokens, and how one is sent away.

A token is shown once and kept as a SHA-256: it is 256 random bits, so there is nothing to guess that a slow hash
would protect. What a client holds counts until it says that it is back; an operator who knows that a client runs no
more evicts it, and what it holds is free at once.
"""

from __future__ import annotations

import hashlib
import secrets
from datetime import datetime, timedelta
from fnmatch import fnmatchcase

from django.db.models import Q

from django_semq.exceptions import InvalidClient, UnknownClient
from django_semq.holder.service import Books
from django_semq.locking import join
from django_semq.models import Client, Demand, IssuedGrant, Semaphore
from django_semq.protocol.names import name_problem, shown
from django_semq.rows import alias_of

KEYS_AT_ONCE = 100
HEARD_EVERY = timedelta(seconds=10)
"""`last_seen` is written no more often: it is there for people."""


def add(client_id: str, *, patterns: str = "") -> str:
    """Introduce a client and return its token, which is stored nowhere. Raises `InvalidClient` for a name that is
    none or is taken; then nothing changed."""
    if problem := name_problem(client_id):
        raise InvalidClient(f"the name is {shown(client_id)}; {problem}")
    token = _new_token()

    def store() -> bool:
        if Client.objects.filter(client_id=client_id).exists():
            return False
        Client.objects.create(client_id=client_id, token_hash=_hashed(token), patterns=patterns)
        return True

    if not join(store, using=alias_of(Client)):
        raise InvalidClient(f"there is a client {shown(client_id)}; rotate its token, or give another name")
    return token


def rotate(client_id: str) -> str:
    """Give a client a new token and return it; the old one is refused from the commit on. What it holds stays.
    Raises `UnknownClient`."""
    token = _new_token()
    _change(client_id, token_hash=_hashed(token))
    return token


def evict(client_id: str, *, now: datetime) -> int:
    """Refuse a client from now on and free all it holds; returns the number of permits. It is the operator's word
    that the client runs nothing any more: the limit may else be exceeded by what it runs.

    Raises `UnknownClient`. After a crash half way the client is refused already, and doing it again frees the rest.
    """
    client = _change(client_id, evicted_at=now)
    freed = 0
    while names := _names_of(client):

        def forget(names: list[str] = names) -> int:
            books = Books(now)
            books.lock(names, skip_locked=False)
            permits = books.forget(client)
            books.write()
            return permits

        freed += join(forget, using=alias_of(Semaphore))
    return freed


def readmit(client_id: str) -> None:
    """Let an evicted client speak again. Raises `UnknownClient`; twice is safe."""
    _change(client_id, evicted_at=None)


def by_token(token: str) -> Client | None:
    """Whose token this is."""
    return Client.objects.filter(token_hash=_hashed(token)).exclude(token_hash="").order_by("pk").first()


def may_use(client: Client, key: str) -> bool:
    """Whether the client may use this key."""
    patterns = client.patterns.splitlines()
    return not patterns or any(fnmatchcase(key, pattern) for pattern in patterns)


def heard(client: Client, *, now: datetime) -> None:
    """Note that a client was heard; outside any transaction of ours, as every message of it would wait for the row."""
    long_ago = Q(last_seen__isnull=True) | Q(last_seen__lt=now - HEARD_EVERY)
    if client.last_seen is None or client.last_seen < now - HEARD_EVERY:
        Client.objects.filter(long_ago, pk=client.pk).update(last_seen=now)


# --------------------------------------------------------------------------------------------------------- internals


def _new_token() -> str:
    return secrets.token_urlsafe(32)


def _hashed(token: str) -> str:
    return hashlib.sha256(token.encode(errors="surrogatepass")).hexdigest()


def _change(client_id: str, **values: object) -> Client:
    """The client with these values. A queue of this project is a client too, but speaks through no door."""

    def change() -> Client | None:
        client = Client.objects.filter(client_id=client_id, queue="").order_by("pk").first()
        if client is not None:
            Client.objects.filter(pk=client.pk).update(**values)
        return client

    if (client := join(change, using=alias_of(Client))) is None:
        raise UnknownClient(f"there is no client {shown(client_id)} that has a token; see semq_client list")
    return client


def _names_of(client: Client) -> list[str]:
    """The first keys, in the order in which they are locked, of which it holds or asks something."""
    rows = Q(pk__in=IssuedGrant.objects.filter(client=client).values("semaphore")) | Q(
        pk__in=Demand.objects.filter(client=client).values("semaphore")
    )
    return list(Semaphore.objects.filter(rows).order_by("name").values_list("name", flat=True)[:KEYS_AT_ONCE])
