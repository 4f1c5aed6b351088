"""Which rows a list shows, and in what order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db.models import QuerySet
from rest_framework.exceptions import NotFound
from rest_framework.filters import BaseFilterBackend
from rest_framework.pagination import Cursor, CursorPagination
from rest_framework.request import Request
from rest_framework.views import APIView

from django_semq.api.errors import wrong
from django_semq.api.requests import queue_of
from django_semq.models import State
from django_semq.protocol.names import name_problem, shown
from django_semq.queue.items import queues

STATES = {state.name.lower(): state for state in State}


class ArrivalOrder(CursorPagination):
    """Pages in the order of the row numbers, which is the order of arrival: what comes later never moves what
    was on a page, and nothing is counted."""

    ordering = "id"
    page_size = 100
    page_size_query_param = "page_size"
    max_page_size = 1000

    def decode_cursor(self, request: Request) -> Cursor | None:
        try:
            cursor = super().decode_cursor(request)
            if cursor is not None:
                int(cursor.position or "")  # Where there is one, it is a row number.
        except (NotFound, ValueError):
            text = "the cursor is none that this API gave; begin without one"
            raise wrong("invalid_filter", text, self.cursor_query_param) from None
        return cursor


class ExactFilters(BaseFilterBackend):
    """`?key=…`: the parameters in a view's `filters`, each with the column that must equal it exactly.

    Only rows of configured queues are shown, whether one is asked for or not. A wrong value is refused: an
    empty answer, or one with all rows, would look like the answer to the question.
    """

    def filter_queryset(self, request: Request, queryset: QuerySet[Any], view: APIView) -> QuerySet[Any]:
        filters: Mapping[str, str] = view.filters  # type: ignore[attr-defined]
        given = {name: request.query_params[name] for name in filters if name in request.query_params}
        aliases = [queue_of(given.pop("queue")).alias] if "queue" in given else list(queues)
        # With the queue, which the indexes begin with, a key or an id is found without a scan.
        queryset = queryset.filter(**{f"{filters['queue']}__in": aliases})
        return queryset.filter(**{filters[name]: _checked(name, value) for name, value in given.items()})


def _checked(name: str, value: str) -> str | State:
    if name == "state":
        if value not in STATES:
            raise wrong("invalid_filter", f"state is {shown(value)}; give one of {', '.join(STATES)}", name)
        return STATES[value]
    if problem := name_problem(value, blank=name == "group"):
        raise wrong("invalid_filter", f"{name} is {shown(value)}: {problem}", name)
    return value
