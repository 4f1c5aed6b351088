"""The application of all simulated projects: it notes what runs, and behaves no better than applications do."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from django_semq import queues
from tests.sim.boundaries import AFTER, BEFORE
from tests.sim.router import turn

if TYPE_CHECKING:
    from django_semq.queue.admission import AdmittedItem
    from tests.sim.world import World

MAIL, BULK = "mail", "bulk"
"""Two queues of a project. Items of `mail` are released by the application, those of `bulk` also by `finished()`."""

Row = tuple[str, int]
"""(database, row number) of an item."""

SEMQ = {
    "QUEUES": {
        MAIL: {"CLIENT_ID": "mailer", "ADMIT": f"{__name__}.admit"},
        BULK: {
            "CLIENT_ID": "bulk-mailer",
            "ADMIT": f"{__name__}.admit",
            "FINISHED": f"{__name__}.finished",
            "FINISHED_CHECK": 40,
            "MAX_ADMIT_BATCH": 2,
            "RETRY_DELAY": f"{__name__}.retry_delay",
        },
    },
    "HOLDER": {
        "LIMITS": f"{__name__}.limits",
        "RULES": {"red": {"limit": 4, "groups": {"x": 2}}, "blue": {"groups": {"x": 1}}},
    },
    "DRIVER": {"SCHEDULE": False, "WAKE": False},
}
KEYS = ("red", "blue", "green")
GROUPS = ("", "x", "y")
BASE: dict[str, int | None] = {"red": 4, "blue": 3, "green": 1}
"""The largest limit that a key has by the settings and the LIMITS function."""
BASE_CEILINGS: dict[tuple[str, str], int] = {("red", "x"): 2, ("blue", "x"): 1}


class Failure(Exception):
    """The application fails."""


@dataclass
class Application:
    world: World
    running: dict[Row, AdmittedItem] = field(default_factory=dict)
    """The truth: what was begun and has not ended."""
    ended: dict[Row, str] = field(default_factory=dict)
    """Items whose work has ended, with their ids. It is not done again, whatever arrives late."""
    returned: set[tuple[str, int, int]] = field(default_factory=set)
    """(database, row, attempt) of each hand-over that admit() has taken."""

    def admit(self, items: list[AdmittedItem]) -> None:
        world, node = self.world, turn.get()
        world.refuse_open_transaction("admit()")
        world.cross("admit", BEFORE)
        for item in items:
            world.watcher.handed_over(node.alias, item)
        if world.faults.happens("admit fails" if len(world.acting) == 1 else "admit fails meanwhile"):
            raise Failure("the work could not be started")
        if world.faults.happens("admit is slow"):
            world.pass_time(world.faults.rng.choice((1, 70, 70)))
            world.meanwhile(node, "while admit() takes its time")
            if world.faults.happens("admit fails"):
                raise Failure("the work could not be started, which took long to see")
        for item in items:
            if (node.alias, item.row) not in self.ended:
                self.running[node.alias, item.row] = item
        if world.faults.happens("admit releases"):
            self.end((node.alias, items[0].row))
            queues[world.watcher.queue_of(node.alias, items[0].row)].release(items[0].id)
        self.returned |= {(node.alias, item.row, item.attempt) for item in items}
        world.cross("admit", AFTER)

    def end(self, row: Row) -> None:
        """The work of an item is done."""
        if item := self.running.pop(row, None):
            self.ended[row] = item.id

    def finished(self, ids: list[str]) -> Any:
        world, node = self.world, turn.get()
        world.refuse_open_transaction("finished()")
        world.cross("finished", BEFORE)
        if world.faults.happens("finished fails"):
            raise Failure("nobody knows")
        answer = [uid for uid in ids if world.watcher.row_of(node.alias, BULK, uid) in self.ended]
        world.cross("finished", AFTER)
        if world.faults.happens("finished talks rubbish"):
            return world.faults.rng.choice((None, "all", 3, [*answer, *answer, 7, "who?"], iter(answer)))
        return answer

    def limits(self, key: str) -> Any:
        world = self.world
        world.refuse_open_transaction("LIMITS")
        world.cross("limits", BEFORE)
        if world.faults.happens("limits fail"):
            return world.faults.rng.choice((_unknown, _rubbish, _failing))()
        world.cross("limits", AFTER)
        return {"limit": BASE["blue"], "groups": {"x": 1}} if key == "blue" else None


def _unknown() -> Any:
    raise LookupError("no such customer")


def _rubbish() -> Any:
    return {"limit": -1}


def _failing() -> Any:
    raise Failure("the customers' database is away")


def admit(items: list[AdmittedItem]) -> None:
    turn.get().world.application.admit(items)


def finished(ids: list[str]) -> Any:
    return turn.get().world.application.finished(ids)


def limits(key: str) -> Any:
    return turn.get().world.application.limits(key)


def retry_delay(attempt: int) -> Any:
    return turn.get().world.faults.rng.choice((0, 1, 30, None))
