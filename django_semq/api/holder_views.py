"""The holder's door for other services: who speaks is found out, what is said is read, and the holder answers.

Closed by default: only a client row's token opens it, for that client alone. Throttled by the project's own
DEFAULT_THROTTLE_CLASSES, in the scope `semq_holder` where they go by scopes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, cast

from django.db import DatabaseError
from rest_framework import status
from rest_framework.authentication import BaseAuthentication, get_authorization_header
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.permissions import IsAuthenticated
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from django_semq import clock
from django_semq.api.errors import Refused, refusal, wrong
from django_semq.api.requests import DeepJSONParser
from django_semq.exceptions import Held, HolderRefused
from django_semq.holder import clients, remote
from django_semq.locking import is_passing
from django_semq.models import Client
from django_semq.protocol import wire
from django_semq.protocol.messages import Envelope, PermitRequest, PermitSync
from django_semq.protocol.names import name_problem, shown

MAX_MESSAGES = 100
MAX_BYTES = 2**20
RETRY_AFTER = 1
"""Seconds."""


@dataclass(frozen=True, slots=True)
class Speaker:
    """A client in the place of Django REST framework's user."""

    client: Client

    is_authenticated: ClassVar[bool] = True

    @property
    def pk(self) -> str:
        """What throttles go by: no user's number."""
        return f"semq-client-{self.client.pk}"


class ClientAuthentication(BaseAuthentication):
    """`Authorization: Bearer <token>`."""

    def authenticate(self, request: Request) -> tuple[Speaker, Client] | None:
        scheme, _space, token = get_authorization_header(request).partition(b" ")
        if scheme.lower() != b"bearer":
            return None
        client = clients.by_token(token.strip().decode("latin-1"))
        if client is None:
            raise AuthenticationFailed("no client has this token; ask the holder's operator for one")
        return Speaker(client), client

    def authenticate_header(self, request: Request) -> str:
        return "Bearer"


def client_of(request: Request) -> Client:
    return cast(Client, request.auth)


class HolderView(APIView):
    authentication_classes = [ClientAuthentication]
    permission_classes = [IsAuthenticated]
    parser_classes = [DeepJSONParser]
    renderer_classes = [JSONRenderer]
    throttle_scope = "semq_holder"

    def get_exception_handler(self) -> Callable[[Exception, dict[str, Any]], Response | None]:
        return refusal

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        if int(request.META.get("CONTENT_LENGTH") or 0) > MAX_BYTES:
            raise _too_large(f"the message is longer than {MAX_BYTES} bytes; send fewer rows at a time", None)
        client = client_of(request)
        if client.evicted_at is not None:
            raise Refused(status.HTTP_403_FORBIDDEN, "evicted", f"client {shown(client.client_id)} is evicted")
        clients.heard(client, now=clock.now())

    def handle_exception(self, exc: Exception) -> Response:
        """What passes is no fault: the message may be sent again."""
        is_held = isinstance(exc, Held)
        if is_held or (isinstance(exc, DatabaseError) and is_passing(exc)):
            text = "another transaction has the key; send the message again"
            exc = Refused(status.HTTP_503_SERVICE_UNAVAILABLE, "held", text)
            response = super().handle_exception(exc)
            response["Retry-After"] = str(RETRY_AFTER)
            return response
        return super().handle_exception(exc)


class RequestPermits(HolderView):
    def post(self, request: Request, key: str) -> Response:
        """Report what changed, say what waits, and get what is free."""
        return Response(_answer(client_of(request), key, request.data, "request", clock.now()))


class SyncPermits(HolderView):
    def post(self, request: Request, key: str) -> Response:
        """Report what changed."""
        return Response(_answer(client_of(request), key, request.data, "sync", clock.now()))


class Exchange(HolderView):
    def post(self, request: Request) -> Response:
        """Messages for many keys, each done for itself: `{"v", "clientId", "messages": [{"key", …}]}`. None at all is
        a sign of life."""
        now = clock.now()
        client = client_of(request)
        messages = _messages(request.data, client)
        return Response({"replies": [_entry(client, entry, position, now) for position, entry in enumerate(messages)]})


# --------------------------------------------------------------------------------------------------------- internals


def _answer(client: Client, key: object, data: object, kind: str, now: datetime) -> dict[str, Any]:
    if problem := name_problem(key):
        raise wrong("invalid_message", f"the key is {shown(key)}; {problem}", "key")
    try:
        message: PermitRequest | PermitSync = (
            wire.read_request(data, now=now) if kind == "request" else wire.read_sync(data)
        )
    except wire.InvalidMessage as error:
        raise wrong("invalid_message", str(error), error.field) from None
    _check_speaker(client, message.client_id)
    if not clients.may_use(client, str(key)):
        text = f"client {shown(client.client_id)} may not use key {shown(key)}"
        raise Refused(status.HTTP_403_FORBIDDEN, "key_not_allowed", text, "key")
    reply = remote.answer(Envelope(str(key), message), now=now)
    if isinstance(reply, HolderRefused):  # Evicted since it was let in.
        raise Refused(status.HTTP_403_FORBIDDEN, "evicted", str(reply))
    return wire.written_reply(reply, to=message)


def _messages(data: object, client: Client) -> list[Mapping[str, Any]]:
    """The messages of an exchange, each with what its head says for all."""
    if not isinstance(data, Mapping):
        raise wrong("invalid_message", f"it is {shown(data)}; send an object", None)
    try:
        head = wire.read_head(data)
    except wire.InvalidMessage as error:
        raise wrong("invalid_message", str(error), error.field) from None
    _check_speaker(client, head["clientId"])
    messages = data.get("messages")
    if not isinstance(messages, list):
        raise wrong("invalid_message", f"it is {shown(messages)}; send a list", "messages")
    if len(messages) > MAX_MESSAGES:
        raise _too_large(f"it has {len(messages)} entries; send at most {MAX_MESSAGES} at a time", "messages")
    for position, entry in enumerate(messages):
        if not isinstance(entry, Mapping):
            raise wrong("invalid_message", f"it is {shown(entry)}; send an object", f"messages[{position}]")
    return [{**entry, **head} for entry in messages]


def _entry(client: Client, entry: Mapping[str, Any], position: int, now: datetime) -> dict[str, Any]:
    """The answer to one message of many: what is wrong with it is its own affair."""
    key = entry.get("key")
    kind = "request" if entry.get("type") == "request" else "sync"
    try:
        return {"key": key, "status": status.HTTP_200_OK, "reply": _answer(client, key, entry, kind, now)}
    except Refused as error:
        told = {"error": error.get_codes(), "field": error.field, "detail": str(error.detail)}
        return {"key": key, "status": error.status_code, "error": told}
    except (Held, DatabaseError) as error:
        if isinstance(error, DatabaseError) and not is_passing(error):
            raise
        told = {"error": "held", "field": None, "detail": "another transaction has the key; send the message again"}
        return {"key": key, "status": status.HTTP_503_SERVICE_UNAVAILABLE, "error": told}


def _check_speaker(client: Client, claimed: str) -> None:
    if claimed != client.client_id:
        text = f"the token is that of {shown(client.client_id)}, the message says {shown(claimed)}"
        raise Refused(status.HTTP_403_FORBIDDEN, "not_you", text, "clientId")


def _too_large(text: str, field: str | None) -> Refused:
    return Refused(status.HTTP_413_REQUEST_ENTITY_TOO_LARGE, "too_large", text, field)
