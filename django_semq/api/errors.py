"""The one shape of everything that is refused: `{"error": code, "field": path or null, "detail": text}`."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import RequestDataTooBig
from rest_framework import status
from rest_framework.exceptions import APIException
from rest_framework.response import Response
from rest_framework.views import exception_handler

from django_semq.exceptions import InvalidItem


class Refused(APIException):
    """A request that is not done, with nothing of it stored."""

    def __init__(self, status_code: int, error: str, detail: str, field: str | None = None) -> None:
        super().__init__(_encodable(detail), error)
        self.status_code = status_code
        self.field = None if field is None else _encodable(field)


def wrong(error: str, detail: str, field: str | None) -> Refused:
    """One value of the request is wrong."""
    return Refused(status.HTTP_400_BAD_REQUEST, error, detail, field)


def wrong_item(error: InvalidItem, *, many: bool) -> Refused:
    """What the library found wrong with an item, with the path to it: `key`, or `items[3].key` in a list."""
    path = [f"items[{error.index}]" if many else "", error.field]
    detail = str(error).removeprefix(f"item {error.index}: ")  # The path says which.
    return wrong("invalid_item", detail, ".".join(filter(None, path)) or None)


def refusal(exc: Exception, context: dict[str, Any]) -> Response | None:
    """The answer to an exception of a view; None for a fault of ours, which stays an error 500."""
    if isinstance(exc, RequestDataTooBig):
        exc = Refused(status.HTTP_413_REQUEST_ENTITY_TOO_LARGE, "too_large", f"{exc} Send less at a time.")
    response = exception_handler(exc, context)
    if response is not None and "detail" in response.data:
        detail = response.data["detail"]
        response.data = {"error": detail.code, "field": getattr(exc, "field", None), "detail": detail}
    return response


def _encodable(text: str) -> str:
    """The text with what UTF-8 cannot hold written as an escape: it may quote what was wrong."""
    return text.encode(errors="backslashreplace").decode()
