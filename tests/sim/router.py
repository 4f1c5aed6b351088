"""Whose turn it is: each node's ORM calls go to its project's database, and the time is the node's own."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.sim.world import Node

turn: ContextVar[Node] = ContextVar("turn")
"""The node that acts."""


class NodeRouter:
    def db_for_read(self, model, **hints):
        return turn.get().alias

    db_for_write = db_for_read
