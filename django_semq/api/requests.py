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
from django_semq.exceptions import UnknownQueue
from django_semq.protocol.names import name_problem, shown
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


def one_queue(given: Sequence[Any], asked: str | None, *, many: bool) -> tuple[Queue, list[Any]]:
    """The queue of a request, named by its address or by what it holds, and what it holds without that name.

    What names none is for the queue of the address, else the default one. All must agree: one request is all
    or nothing, which two queues could not be.
    """
    otherwise = DEFAULT_QUEUE if asked is None else asked
    queue = None if asked is None else queue_of(asked)
    for index, one in enumerate(given):
        field = f"items[{index}].queue" if many else "queue"
        its_queue = queue_of(one.get("queue", otherwise) if isinstance(one, dict) else otherwise, field)
        queue = queue or its_queue
        if its_queue.alias != queue.alias:
            text = f"queue is {shown(its_queue.alias)}, this request is for {shown(queue.alias)}; send another"
            raise wrong("invalid_item", text, field)
    rest = [_without_queue(one) if isinstance(one, dict) else one for one in given]
    return queue or queue_of(otherwise), rest


def ids_of(body: Any, asked: str | None) -> tuple[Queue, list[str]]:
    """The queue and the ids of `{"ids": [...], "queue": alias}`."""
    queue, (body,) = one_queue([body], asked, many=False)
    if not isinstance(body, dict) or not isinstance(body.get("ids"), list):
        raise wrong("invalid", 'ids is missing or no list; give {"ids": ["…"]}', "ids")
    for name in body:
        if name != "ids":
            raise wrong("invalid", f"there is no field {shown(name)}; there are ids and queue", name)
    for index, uid in enumerate(bounded(body["ids"], "ids")):
        if problem := name_problem(uid):
            raise wrong("invalid", f"the id is {shown(uid)}: {problem}", f"ids[{index}]")
    return queue, body["ids"]


def bounded(values: list[Any], field: str) -> list[Any]:
    """The list, if one request may have it."""
    if len(values) > MAX_ITEMS:
        text = f"{field} has {len(values)} entries, one request takes {MAX_ITEMS}; send several"
        raise Refused(status.HTTP_413_REQUEST_ENTITY_TOO_LARGE, "too_large", text, field)
    return values


def _without_queue(given: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if name != "queue"}
