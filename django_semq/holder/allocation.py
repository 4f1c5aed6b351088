"""How many permits each waiting row of a key gets in one round. Plain Python: no database, no clock of its own.

Permits go one by one to the row with the smallest holding, ties to the oldest, groups at their ceiling dropping
out; that is max-min fairness over what is held after the round (the stepwise rule is that of Kueue's fair sharing
tournament, with all weights 1). Half of what is free, rounded up, goes first to rows that have waited for long,
oldest first, so that a row which always holds much cannot be passed for ever.

The level search gives the same result as stepping, at O(rows × log permits).
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True)
class Waiting:
    """One client's demand in one group of a key."""

    client: int
    group: str
    need: int
    holding: int
    """What this client already holds in this group."""
    since: datetime


Shares = dict[tuple[int, str], int]


def allocate(
    free: int | None, rows: Sequence[Waiting], caps: Mapping[str, int], *, now: datetime, aged: timedelta
) -> Shares:
    """Permits for each (client, group); rows that get none are left out.

    `free` is the key's headroom, None if unlimited; `caps` the headroom of groups that have a ceiling.
    """
    needs = {(row.client, row.group): row.need for row in rows if row.need > 0}
    total = sum(needs.values())
    free = total if free is None else min(free, total)
    if free <= 0:
        return {}
    wanted_of: dict[str, int] = {}
    for (_client, group), need in needs.items():
        wanted_of[group] = wanted_of.get(group, 0) + need
    if free == total and all(wanted <= caps.get(group, wanted) for group, wanted in wanted_of.items()):
        return needs
    room = {group: max(0, min(caps.get(group, wanted), wanted)) for group, wanted in wanted_of.items()}
    shares = _for_aged([row for row in rows if row.need > 0 and now - row.since > aged], free, room)
    for (_client, group), given in shares.items():
        room[group] -= given
    rest = [
        Waiting(row.client, row.group, row.need - given, row.holding + given, row.since)
        for row in rows
        if row.need > (given := shares.get((row.client, row.group), 0))
    ]
    for at, given in _fairly(free - sum(shares.values()), rest, room).items():
        shares[at] = shares.get(at, 0) + given
    return {at: given for at, given in shares.items() if given}


def _for_aged(rows: Sequence[Waiting], free: int, room: Mapping[str, int]) -> Shares:
    """One permit each, oldest first, again and again, from half of what is free."""
    budget = (free + 1) // 2
    room = dict(room)
    shares: Shares = {}
    waiting = sorted(rows, key=_age)
    while budget and waiting:
        served = []
        for row in waiting:
            at = (row.client, row.group)
            if budget and room[row.group] > 0 and shares.get(at, 0) < row.need:
                shares[at] = shares.get(at, 0) + 1
                room[row.group] -= 1
                budget -= 1
                served.append(row)
        waiting = served
    return shares


def _fairly(free: int, rows: Sequence[Waiting], room: Mapping[str, int]) -> Shares:
    """Raise all rows to the highest common level that fits, then give what is left one by one."""
    groups: dict[str, list[Waiting]] = {}
    for row in rows:
        groups.setdefault(row.group, []).append(row)

    def up_to(level: int) -> int:
        return sum(min(room[group], _steps(members, level)) for group, members in groups.items())

    low, high = 0, max((row.holding + row.need for row in rows), default=0)
    while low < high:
        middle = (low + high + 1) // 2
        if up_to(middle) <= free:
            low = middle
        else:
            high = middle - 1
    shares: Shares = {}
    left = {}
    for group, members in groups.items():
        given = _fill(members, room[group], low)
        shares.update(given)
        left[group] = room[group] - sum(given.values())
    free -= sum(shares.values())
    by_row = {(row.client, row.group): row for row in rows}
    steps = [
        (row.holding + shares[at], *_age(row))
        for at, row in by_row.items()
        if left[row.group] > 0 and shares[at] < row.need
    ]
    heapq.heapify(steps)
    while free > 0 and steps:
        holding, since, client, group = heapq.heappop(steps)
        if left[group] <= 0:
            continue
        at = (client, group)
        shares[at] += 1
        left[group] -= 1
        free -= 1
        if shares[at] < by_row[at].need:
            heapq.heappush(steps, (holding + 1, since, client, group))
    return shares


def _fill(rows: Sequence[Waiting], room: int, level: int) -> Shares:
    """What the rows of one group take up to the level; if the group has less room, its highest level that fits."""
    if _steps(rows, level) > room:
        low, high = 0, level
        while low < high:
            middle = (low + high + 1) // 2
            if _steps(rows, middle) <= room:
                low = middle
            else:
                high = middle - 1
        shares = {(row.client, row.group): _taken(row, low) for row in rows}
        spare = room - sum(shares.values())
        for row in sorted(rows, key=_age):
            at = (row.client, row.group)
            if spare and shares[at] < row.need and row.holding + shares[at] == low:
                shares[at] += 1
                spare -= 1
        return shares
    return {(row.client, row.group): _taken(row, level) for row in rows}


def _steps(rows: Sequence[Waiting], level: int) -> int:
    return sum(_taken(row, level) for row in rows)


def _taken(row: Waiting, level: int) -> int:
    """Permits that bring this row's holding up to the level."""
    return max(0, min(row.need, level - row.holding))


def _age(row: Waiting) -> tuple[datetime, int, str]:
    return (row.since, row.client, row.group)
