"""What goes wrong, and how often: each history draws its own mixture, so that rare faults meet without the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from random import Random

from django.db import OperationalError

from tests.sim.boundaries import AFTER, BEFORE, CALLS, reachable_places

HIGHEST = {
    "crash": 0.03,  # a node dies at a boundary
    "error": 0.003,  # a statement fails, and another try may succeed
    "hook lost": 0.3,  # what was to follow a commit does not
    "keep": 0.2,  # others act when a node's transaction is as good as over, and its keys are still taken
    "take early": 0.1,  # others act when a node has taken its keys, and has read nothing yet
    "race": 0.2,  # another process stores the same id between the look and the insert
    "lose": 0.3,  # a message, or its reply
    "double": 0.3,  # a message, or its reply
    "admit fails": 0.3,
    "admit is slow": 0.3,  # so slow that others act meanwhile
    "admit fails meanwhile": 0.8,  # for those others
    "admit releases": 0.2,
    "finished fails": 0.1,
    "finished talks rubbish": 0.2,
    "limits fail": 0.2,
}
"""Kinds of faults, with their highest probability: above, nothing would ever get done."""


SMALL = {"BATCH_KEYS": 2, "NUDGES_PER_ROUND": 3, "PERMITS_PER_ROUND": 2}
"""The pump's bounds in half of the histories: nobody waits for ten thousand nudges."""


class Crash(BaseException):
    """The process is killed at this point. No `except Exception` may hold it."""


@dataclass
class Faults:
    """Decides at each point whether it goes wrong there. All chance is of `rng`, so a seed decides it all."""

    rng: Random
    likely: Mapping[str, float] = field(default_factory=dict)
    """Kind -> probability; what is not named does not happen."""
    focus: str = ""
    """A point at which nodes die far more often."""
    seed: int | None = None
    """Of which all this was drawn."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    """The pump's bounds, where they differ from the library's."""
    next_crash: str | None = None
    """Die at the next point that has this pattern in it. For tests that say what happens."""
    crossed: Counter[str] = field(default_factory=Counter)
    crashed: Counter[str] = field(default_factory=Counter)

    @classmethod
    def drawn(cls, seed: int) -> Faults:
        """A mixture: each kind is absent from half of the histories. One point after the other is in focus."""
        rng = Random(seed)
        likely = {kind: highest * rng.random() * rng.randint(0, 1) for kind, highest in HIGHEST.items()}
        points = all_points()
        return cls(rng, likely, points[seed % len(points)], seed, sizes=rng.choice((SMALL, {})))

    def happens(self, kind: str) -> bool:
        return kind in self.likely and self.rng.random() < self.likely[kind]

    def cross(self, place: str, moment: str) -> None:
        """Pass a point at which a process may die, or die there."""
        point = f"{place}: {moment}"
        self.crossed[point] += 1
        if self.next_crash is not None:
            dies = fnmatchcase(point, f"*{self.next_crash}*")
            if dies:
                self.next_crash = None
        else:
            dies = self.happens("crash") or (point == self.focus and self.is_met(point))
        if dies:
            self.crashed[point] += 1
            raise Crash(point)

    def is_met(self, point: str) -> bool:
        """A point in focus kills the first who comes there, and some of the others."""
        return bool(self.likely) and (self.crossed[point] == 1 or self.rng.random() < 0.3)

    def stop(self) -> None:
        """From now on everything goes well."""
        self.likely = {}
        self.next_crash = None

    def __str__(self) -> str:
        chances = ", ".join(f"{kind} {chance:.3f}" for kind, chance in self.likely.items() if chance)
        small = "; small batches" if self.sizes else ""
        return f"seed {self.seed}: focus {self.focus or 'none'}; {chances or 'no faults'}{small}"


def all_points() -> list[str]:
    places = sorted([*reachable_places(), *CALLS])
    return [f"{place}: {moment}" for place in places for moment in (BEFORE, AFTER)]


def passing_error(vendor: str) -> OperationalError:
    """A deadlock, or on SQLite a lock that was not to be had: the statement did nothing, and another try may."""
    if vendor == "sqlite":
        return OperationalError("database is locked")
    if vendor == "mysql":
        return OperationalError(1213, "Deadlock found when trying to get lock; try restarting transaction")
    error = OperationalError("deadlock detected")
    error.__cause__ = _Deadlock()
    return error


class _Deadlock(Exception):
    sqlstate = "40P01"
