"""The holder for clients elsewhere: each message in a transaction of its own, and when to come again.

The client is known by then, and the message understood (`api.holder_views`). Unlike a queue of this project it is
told of room by nobody: the reply says when to ask again.
"""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial

from django_semq import clock
from django_semq.exceptions import Held, HolderRefused, Unprepared
from django_semq.holder import service
from django_semq.locking import run
from django_semq.models import Semaphore
from django_semq.protocol.messages import BlockedReason, Envelope, PermitRequest, Reply
from django_semq.rows import alias_of

PREPARATIONS = 3
LOOKS = 5
"""At a key that another transaction has: 75 ms in all, after which the client is told to come again."""
ALL_MET, BLOCKED, PAUSED = timedelta(seconds=0.25), timedelta(seconds=1), timedelta(seconds=10)
"""When a client may ask again: at once for more, soon for what is about to come back, now and then while an operator
has paused the key. The longest is less than a grant's window, else a lost reply's permits came back too late."""


def answer(envelope: Envelope, *, now: datetime) -> Reply | HolderRefused:
    """Do as the message says, in one transaction, committed on return. Doubling it is safe: its counts are
    cumulative; a request doubled reserves twice, and what nobody claims comes back after GRANT_TIMEOUT.

    Raises `Held` if another transaction goes on holding the key.
    """
    preparations = looks = 0
    while True:
        try:
            return run(partial(_answer, envelope, now), using=alias_of(Semaphore))
        except Unprepared as error:
            preparations += 1
            if preparations > PREPARATIONS:
                raise
            service.prepare(error.keys, client_id=envelope.message.client_id, queue="", now=now)
        except Held:
            looks += 1
            if looks >= LOOKS:
                raise
            clock.pause(random.uniform(0, 0.005 * 2**looks))


def _answer(envelope: Envelope, now: datetime) -> Reply | HolderRefused:
    books = service.Books(now)
    (reply,) = books.exchange([envelope])
    if isinstance(reply, Reply):
        reply = replace(reply, contended=books.is_contended(envelope.key, envelope.message.client_id))
        if isinstance(envelope.message, PermitRequest):
            reply = replace(reply, next_request_at=now + _pause(reply) * random.uniform(1, 1.2))
    books.write()
    return reply


def _pause(reply: Reply) -> timedelta:
    """For the group that may get something first. Up to a fifth longer at random, so that clients do not meet."""
    pauses = [PAUSED if blocked.reason == BlockedReason.PAUSED else BLOCKED for blocked in reply.blocked]
    return min(pauses, default=ALL_MET)
