"""Counts what runs, from what the work itself wrote down.

It imports nothing of the library, so what it says does not rest on what it watches. Events are lines of one file:
a short write with O_APPEND is whole whoever else writes, and what a killed process wrote stays. Times are of the
clock that all processes of a machine share.
"""

import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

Limit = Callable[[str], int | None]
Ceiling = Callable[[str, str], int | None]


class Event(NamedTuple):
    at: int
    """Nanoseconds of the monotonic clock."""
    what: str
    """enqueuing, queued · start, end, killed: of the work · released"""
    key: str
    group: str
    item: str
    pid: int


class Observer:
    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def note(self, what: str, key: str, group: str, *items: str) -> None:
        at, pid = time.monotonic_ns(), os.getpid()
        lines = "".join(f"{at}\t{what}\t{key}\t{group}\t{item}\t{pid}\n" for item in items)
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(file, lines.encode())
        finally:
            os.close(file)

    def events(self) -> list[Event]:
        """All events so far, in the order of their times."""
        if not self.path.exists():
            return []
        lines = self.path.read_text().split("\n")[:-1]  # The last one may be under way.
        found = []
        for line in lines:
            at, what, key, group, item, pid = line.split("\t")
            found.append(Event(int(at), what, key, group, item, int(pid)))
        return sorted(found)

    def items(self, what: str) -> list[str]:
        return [event.item for event in self.events() if event.what == what]


class Peaks(NamedTuple):
    of_key: Mapping[str, int]
    of_group: Mapping[tuple[str, str], int]


def peaks(events: Iterable[Event]) -> Peaks:
    """The most items of each key, and of each group, that ran at one moment. One handed over again while it runs is
    still one."""
    running: dict[str | tuple[str, str], set[str]] = defaultdict(set)
    most: Counter[str | tuple[str, str]] = Counter()
    for event in events:
        for at in (event.key, (event.key, event.group)):
            if event.what == "start":
                running[at].add(event.item)
            elif event.what in ("end", "killed"):
                running[at].discard(event.item)
            most[at] = max(most[at], len(running[at]))
    return Peaks(
        {at: number for at, number in most.items() if isinstance(at, str)},
        {at: number for at, number in most.items() if isinstance(at, tuple)},
    )


def exceeded(events: Iterable[Event], limit: Limit, ceiling: Ceiling) -> list[str]:
    """What ran beyond its limit, in words."""
    of_key, of_group = peaks(events)
    wrong = [f"key {key}: {most} ran" for key, most in of_key.items() if _is_over(most, limit(key))]
    return wrong + [
        f"group {group} of key {key}: {most} ran"
        for (key, group), most in of_group.items()
        if _is_over(most, ceiling(key, group))
    ]


def longest_neglect(events: Iterable[Event], limit: Limit, ceiling: Ceiling) -> tuple[float, str]:
    """The longest time, in seconds, and its key, in which an item waited and its permit lay free and nothing of the
    key began. A permit is taken from the start of the work until its release has returned."""
    waiting: dict[str, Counter] = defaultdict(Counter)
    taken: dict[str, Counter] = defaultdict(Counter)
    since: dict[str, int] = {}
    longest = (0.0, "")
    for event in events:
        key, group = event.key, event.group
        waiting[key][group] += {"queued": 1, "start": -1}.get(event.what, 0)
        taken[key][group] += {"start": 1, "released": -1}.get(event.what, 0)
        if key in since:
            longest = max(longest, ((event.at - since[key]) / 1e9, key))
        could_begin = _has_room(taken[key].total(), limit(key)) and any(
            number > 0 and _has_room(taken[key][name], ceiling(key, name)) for name, number in waiting[key].items()
        )
        if not could_begin:
            since.pop(key, None)
        elif key not in since or event.what == "start":
            since[key] = event.at
    return longest


def _is_over(number: int, most: int | None) -> bool:
    return most is not None and number > most


def _has_room(number: int, most: int | None) -> bool:
    return most is None or number < most
