"""Messages as JSON values, version 1: names as on the wire, instants as whole milliseconds since 1970.

Reading is strict in what it knows and blind to the rest: a field that is missing, of another type or out of
range is refused by its path and nothing of the message counts, a field of no meaning here is passed over, so that
a newer peer is understood. Pure: neither database nor settings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from django_semq.protocol.messages import (
    GrantReport,
    GroupDemand,
    LeaseReport,
    PermitRequest,
    PermitSync,
    Reply,
)
from django_semq.protocol.names import name_problem, shown

VERSION = 1
MAX_ROWS = 500
"""Entries in one list of a message: what a client reports at most at once."""
MAX_ID = 64
MAX_COUNT = 2**31 - 1
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MAX_MILLISECONDS = 253_402_300_799_999
"""The last of the year 9999, the last that a datetime holds."""

T = TypeVar("T")


class InvalidMessage(ValueError):
    """A message that is not understood. Nothing of it counts."""

    def __init__(self, text: str, *, field: str | None) -> None:
        super().__init__(text)
        self.field = field
        """Its path, as in `grants[3].claimed`; None for the message itself."""


def read_request(data: object, *, now: datetime) -> PermitRequest:
    """A request from its JSON value. Raises `InvalidMessage` with the path of the first field that is wrong."""
    fields = _message(data, "request")
    demand = _rows(fields, "demand", lambda row, path: _demand(row, path, now))
    if not demand:
        raise InvalidMessage("it is empty; name at least one group", field="demand")
    groups = [entry.group for entry in demand]
    for position, group in enumerate(groups):
        if group in groups[:position]:
            raise InvalidMessage(f"{shown(group)} comes twice; name each group once", field=f"demand[{position}].group")
    return PermitRequest(
        client_id=_client_id(fields),
        demand=demand,
        grants=_rows(fields, "grants", _grant),
        leases=_rows(fields, "leases", _lease) if "leases" in fields else None,
    )


def read_sync(data: object) -> PermitSync:
    """A sync from its JSON value. Raises `InvalidMessage` with the path of the first field that is wrong."""
    fields = _message(data, "sync")
    return PermitSync(
        client_id=_client_id(fields),
        grants=_rows(fields, "grants", _grant),
        leases=_rows(fields, "leases", _lease) if "leases" in fields else None,
    )


def read_head(data: Mapping[str, Any]) -> dict[str, Any]:
    """What all messages of an exchange share. Raises `InvalidMessage`."""
    _check_version(data)
    return {"v": VERSION, "clientId": _client_id(data)}


def written_reply(reply: Reply, *, to: PermitRequest | PermitSync) -> dict[str, Any]:
    """The JSON value of the answer to this message."""
    answer: dict[str, Any] = {
        "grantResults": [
            {"grantId": result.grant_id, "claimed": result.claimed, "status": str(result.status)}
            for result in reply.grant_results
        ],
        "contended": reply.contended,
    }
    if to.leases is not None:
        answer["leases"] = [
            {
                "leaseId": lease.lease_id,
                "group": lease.group,
                "permits": lease.permits,
                "expiresAt": milliseconds(lease.expires_at),
            }
            for lease in reply.leases
        ]
    if isinstance(to, PermitRequest):
        answer["grants"] = [
            {"grantId": grant.grant_id, "group": grant.group, "permits": grant.permits} for grant in reply.grants
        ]
        answer["blocked"] = [{"group": blocked.group, "reason": str(blocked.reason)} for blocked in reply.blocked]
        if reply.next_request_at is not None:
            answer["nextRequestAt"] = milliseconds(reply.next_request_at)
    return answer


def milliseconds(at: datetime) -> int:
    return (at - EPOCH) // timedelta(milliseconds=1)


# --------------------------------------------------------------------------------------------------------- internals


def _message(data: object, kind: str) -> Mapping[str, Any]:
    if not isinstance(data, Mapping):
        raise InvalidMessage(f"it is {shown(data)}; send an object", field=None)
    if data.get("type") != kind:
        raise InvalidMessage(f"it is {shown(data.get('type'))}; send {kind!r} to this address", field="type")
    _check_version(data)
    return data


def _check_version(data: Mapping[str, Any]) -> None:
    version = data.get("v")
    if isinstance(version, bool) or version != VERSION:
        raise InvalidMessage(f"it is {shown(version)}; this holder speaks version {VERSION}", field="v")


def _client_id(fields: Mapping[str, Any]) -> str:
    value = _present(fields, "clientId", "clientId")
    if problem := name_problem(value):
        raise InvalidMessage(f"it is {shown(value)}; {problem}", field="clientId")
    return str(value)


def _rows(fields: Mapping[str, Any], name: str, read: Callable[[Mapping[str, Any], str], T]) -> tuple[T, ...]:
    rows = _present(fields, name, name)
    if not isinstance(rows, list):
        raise InvalidMessage(f"it is {shown(rows)}; send a list", field=name)
    if len(rows) > MAX_ROWS:
        raise InvalidMessage(f"it has {len(rows)} entries; send at most {MAX_ROWS} at a time", field=name)
    read_rows = []
    for position, row in enumerate(rows):
        path = f"{name}[{position}]"
        if not isinstance(row, Mapping):
            raise InvalidMessage(f"it is {shown(row)}; send an object", field=path)
        read_rows.append(read(row, path))
    return tuple(read_rows)


def _demand(row: Mapping[str, Any], path: str, now: datetime) -> GroupDemand:
    group = _present(row, "group", f"{path}.group")
    if problem := name_problem(group, blank=True):
        raise InvalidMessage(f"it is {shown(group)}; {problem}", field=f"{path}.group")
    count = _number(row, "count", path)
    if "ageMs" in row:  # Needs no common clock, so it goes first.
        age = _number(row, "ageMs", path, most=MAX_MILLISECONDS)
        return GroupDemand(str(group), count, max(EPOCH, now - timedelta(milliseconds=min(age, milliseconds(now)))))
    oldest = _number(row, "oldestAt", path, most=MAX_MILLISECONDS)
    return GroupDemand(str(group), count, EPOCH + timedelta(milliseconds=oldest))


def _grant(row: Mapping[str, Any], path: str) -> GrantReport:
    return GrantReport(
        grant_id=_id(row, "grantId", path),
        claimed=_number(row, "claimed", path),
        released=_number(row, "released", path),
        closed=_flag(row, "closed", path),
    )


def _lease(row: Mapping[str, Any], path: str) -> LeaseReport:
    return LeaseReport(
        lease_id=_id(row, "leaseId", path),
        drawn=_number(row, "drawn", path),
        released=_number(row, "released", path),
        retired=_flag(row, "retired", path),
    )


def _present(row: Mapping[str, Any], name: str, path: str) -> object:
    if name not in row:
        raise InvalidMessage("it is missing", field=path)
    return row[name]


def _id(row: Mapping[str, Any], name: str, path: str) -> str:
    value = _present(row, name, f"{path}.{name}")
    if problem := name_problem(value):
        raise InvalidMessage(f"it is {shown(value)}; {problem}", field=f"{path}.{name}")
    return str(value)[: MAX_ID + 1]  # A longer one is nobody's, and is not looked for in full.


def _number(row: Mapping[str, Any], name: str, path: str, *, most: int = MAX_COUNT) -> int:
    value = _present(row, name, f"{path}.{name}")
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # JSON has one kind of number.
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise InvalidMessage(f"it is {shown(value)}; send a whole number from 0 to {most}", field=f"{path}.{name}")
    return value


def _flag(row: Mapping[str, Any], name: str, path: str) -> bool:
    value = row.get(name, False)
    if not isinstance(value, bool):
        raise InvalidMessage(f"it is {shown(value)}; send true or false", field=f"{path}.{name}")
    return value
