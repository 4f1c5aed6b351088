"""What the body of a request may hold, checked before the library is asked: JSON, one queue, bounded lists.

What an item may be, the library itself checks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import IO, Any

from rest_framework import status
from rest_framework.exceptions import ParseError
from rest_framework.parsers import JSONParser

from django_semq.api.errors import Refused, wrong
from django_semq.exceptions import UnknownQueue, shown
from django_semq.protocol.names import name_problem
from django_semq.queue.items import Queue, queues

MAX_ITEMS = 1000
"""Items or ids of one request: a second's work at most."""

DEFAULT_QUEUE = "default"


class DeepJSONParser(JSONParser):
    """JSON that is nested deeper than Python's reader can follow is the sender's fault, not an error 500."""

    def parse(
        self,
        stream: IO[Any],
        media_type: str | None = None,
        parser_context: Mapping[str, Any] | None = None,
    ) -> Any:
        try:
            return super().parse(stream, media_type, parser_context)
        except RecursionError:
            raise ParseError("the JSON is nested too deep; flatten it") from None


def queue_of(alias: object, field: str = "queue") -> Queue:
    """The queue of this alias."""
    if not isinstance(alias, str):
        raise wrong("unknown_queue", f"queue is {shown(alias)}; give the alias of a queue, a text", field)
    try:
        return queues[alias]
    except UnknownQueue as error:
        raise wrong("unknown_queue", str(error), field) from None


def one_queue(items: Sequence[Any], alias: str, *, many: bool) -> tuple[Queue, list[Any]]:
    """The queue that all items of a request are for, and the items without naming it.

    One that names none is for `alias`. Several queues in one request could not be all or nothing.
    """
    aliases, rest = [], []
    for item in items:
        names_one = isinstance(item, dict) and "queue" in item
        aliases.append(item["queue"] if names_one else alias)
        rest.append({name: item[name] for name in item if name != "queue"} if names_one else item)
    for index, other in enumerate(aliases):
        field = f"items[{index}].queue" if many else "queue"
        queue = queue_of(other, field)
        if other != aliases[0]:
            text = f"queue is {shown(other)}, the first item's is {shown(aliases[0])}; send one request a queue"
            raise wrong("invalid_item", text, field)
    return queue_of(aliases[0] if aliases else alias), rest


def ids_of(body: Any, alias: str) -> tuple[Queue, list[str]]:
    """The queue and the ids of `{"ids": [...], "queue": alias}`."""
    if not isinstance(body, dict) or not isinstance(body.get("ids"), list):
        raise wrong("invalid", 'give {"ids": [...]}, a list of texts', "ids")
    for name in body:
        if name not in ("ids", "queue"):
            raise wrong("invalid", f"there is no field {shown(name)}; there are ids and queue", name)
    ids = bounded(body["ids"], "ids")
    for index, uid in enumerate(ids):
        if problem := name_problem(uid):
            raise wrong("invalid", f"the id is {shown(uid)}: {problem}", f"ids[{index}]")
    return queue_of(body.get("queue", alias)), ids


def bounded(values: list[Any], field: str) -> list[Any]:
    """The list, if one request may have it."""
    if len(values) > MAX_ITEMS:
        text = f"{field} has {len(values)} entries, one request takes {MAX_ITEMS}; send several"
        raise Refused(status.HTTP_413_REQUEST_ENTITY_TOO_LARGE, "too_large", text, field)
    return values
