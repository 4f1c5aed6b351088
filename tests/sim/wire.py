"""The network between the peers and the holder of project one: letters lie here until somebody delivers them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from django_semq import clock
from django_semq.exceptions import HolderRefused
from django_semq.holder import remote
from django_semq.protocol.messages import Envelope, PermitSync, Reply
from tests.sim.peer import Peer

if TYPE_CHECKING:
    from tests.sim.world import Node

Answer = Reply | HolderRefused


@dataclass(eq=False, slots=True)
class Letter:
    """A message of a peer on its way to the holder, or with the answer, on its way back."""

    peer: Peer
    envelope: Envelope
    number: int
    answer: Answer | None = None

    @property
    def is_sync(self) -> bool:
        return isinstance(self.envelope.message, PermitSync)

    def __str__(self) -> str:
        message = self.envelope.message
        reports = "".join(f" {report.claimed}/{report.released}" for report in message.grants)
        if self.answer is None:
            demand = "".join(f" {one.group or '-'}:{one.count}" for one in getattr(message, "demand", ()))
            kind = type(message).__name__.removeprefix("Permit").lower()
            return f"{self.peer.name} {kind} {self.number} {self.envelope.key}{demand} reports{reports or ' none'}"
        return f"{self.peer.name} reply {self.number} {self.envelope.key}: {shown(self.answer)}"


@dataclass
class Wire:
    letters: list[Letter] = field(default_factory=list)


def answer(letter: Letter, node: Node) -> Letter:
    """What the holder answers, in a process of its project: one transaction, whose commit may outlive the reply."""
    node.world.cross("message", "before")
    reply = remote.answer(letter.envelope, now=clock.now())
    node.world.cross("message", "after")
    return Letter(letter.peer, letter.envelope, letter.number, reply)


def shown(reply: Answer) -> str:
    if isinstance(reply, HolderRefused):
        return "refused"
    words = [f"{result.status}({result.claimed})" for result in reply.grant_results]
    words += [f"grant {offer.group or '-'}:{offer.permits}" for offer in reply.grants]
    words += [f"blocked {blocked.group or '-'}:{blocked.reason}" for blocked in reply.blocked]
    return ", ".join(words) or "nothing new"
