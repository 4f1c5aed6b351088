"""The API's resources: items with the callers' verbs; keys, grants and leases to look at."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from django.db.models import Case, Model, OuterRef, QuerySet, Subquery, When
from rest_framework import status
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import BaseSerializer
from rest_framework.viewsets import ReadOnlyModelViewSet

from django_semq.api.counters import with_totals
from django_semq.api.errors import Refused, refusal, wrong_item
from django_semq.api.listing import ArrivalOrder, ExactFilters
from django_semq.api.permissions import ActionPermissions, ModelPermissions
from django_semq.api.requests import DeepJSONParser, bounded, ids_of, one_queue
from django_semq.api.serializers import (
    GrantSerializer,
    ItemDetailSerializer,
    ItemSerializer,
    KeyDetailSerializer,
    KeySerializer,
    LeaseSerializer,
)
from django_semq.exceptions import InvalidItem, TasksOnly
from django_semq.locking import join, lock_by_id
from django_semq.models import Grant, Item, Key, KeyGroup, Lease, State
from django_semq.queue.items import Queue, queues
from django_semq.rows import alias_of

M = TypeVar("M", bound=Model)


class RowViewSet(ReadOnlyModelViewSet[M]):
    """Rows by their number: `/items/1234/`. Names may hold slashes, so `?id=` and the like find them."""

    permission_classes = [ModelPermissions]
    parser_classes = [DeepJSONParser]
    pagination_class = ArrivalOrder
    filter_backends = [ExactFilters]
    filters: Mapping[str, str]
    """Query parameter → column. `queue` is always there."""
    detail_serializer_class: type[BaseSerializer[M]] | None = None
    lookup_value_converter = "int"

    def get_exception_handler(self) -> Callable[[Exception, dict[str, Any]], Response | None]:
        return refusal

    def get_serializer_class(self) -> type[BaseSerializer[M]]:
        if self.action == "retrieve" and self.detail_serializer_class is not None:
            return self.detail_serializer_class
        return super().get_serializer_class()


class ItemViewSet(RowViewSet[Item]):
    """Enqueue, look, release and cancel. What is written goes to `?queue=`, else to `default`."""

    serializer_class = ItemSerializer
    detail_serializer_class = ItemDetailSerializer
    filters = {"queue": "queue", "key": "key", "group": "group", "state": "state", "id": "uid"}

    def get_queryset(self) -> QuerySet[Item]:
        reason = (
            KeyGroup.objects.filter(key__queue=OuterRef("queue"), key__name=OuterRef("key"), name=OuterRef("group"))
            .exclude(blocked_reason="")
            .values("blocked_reason")
        )
        items: QuerySet[Item] = Item.objects.annotate(blocked=Case(When(state=State.QUEUED, then=Subquery(reason))))
        return items if self.action == "retrieve" else items.defer("body")

    def create(self, request: Request) -> Response:
        """Enqueue an object `{"key", "body", "group"?, "id"?, "queue"?}`, or a list of them, all or nothing.

        201 if any is new, 200 if all ids were stored already; those are left as they are.
        """
        given: Any = request.data
        many = isinstance(given, list)
        given = bounded(given, "items") if many else [given]
        queue, items = one_queue(given, request.query_params.get("queue"), many=many)
        try:
            result = queue.enqueue_many(items)
        except InvalidItem as error:
            raise wrong_item(error, many=many) from None
        except TasksOnly as error:
            raise Refused(status.HTTP_409_CONFLICT, "tasks_only", str(error), "queue") from None
        code = status.HTTP_201_CREATED if result.queued else status.HTTP_200_OK
        if many:
            answer = {"queue": queue.alias, "queued": result.queued, "duplicates": result.duplicates}
            return Response(answer, code)
        return self._created(queue, [*result.queued, *result.duplicates][0], code)

    @action(detail=True, methods=["post"], permission_classes=[ActionPermissions])
    def release(self, request: Request, pk: int) -> Response:
        """Give the permit of this very row back."""
        return self._end(State.ADMITTED, "released", Queue.release)

    @action(detail=True, methods=["post"], permission_classes=[ActionPermissions])
    def cancel(self, request: Request, pk: int) -> Response:
        """Remove this very row from the queue."""
        return self._end(State.QUEUED, "cancelled", Queue.cancel)

    @action(detail=False, methods=["post"], url_path="release", permission_classes=[ActionPermissions])
    def release_many(self, request: Request) -> Response:
        """Release the admitted ones of `{"ids": [...], "queue"?}`; says which they were."""
        queue, ids = ids_of(request.data, request.query_params.get("queue"))
        return Response({"queue": queue.alias, "released": queue.release_many(ids)})

    @action(detail=False, methods=["post"], url_path="cancel", permission_classes=[ActionPermissions])
    def cancel_many(self, request: Request) -> Response:
        """Cancel the queued ones of `{"ids": [...], "queue"?}`; says which they were."""
        queue, ids = ids_of(request.data, request.query_params.get("queue"))
        return Response({"queue": queue.alias, "cancelled": queue.cancel_many(ids)})

    def _created(self, queue: Queue, uid: str, code: int) -> Response:
        """Nothing that needs permission to view: a known id may be somebody else's item."""
        row = Item.objects.filter(queue=queue.alias, uid=uid).values_list("pk", flat=True).first()
        answer = {"row": row, "id": uid, "queue": queue.alias, "created": code == status.HTTP_201_CREATED}
        if row is None:  # It has run and was released already.
            return Response(answer, code)
        return Response(answer, code, headers={"Location": self.request.build_absolute_uri(f"{row}/")})

    def _end(self, state: State, done: str, verb: Callable[[Queue, str], bool]) -> Response:
        item = self.get_object()
        queue = queues[item.queue]

        def end() -> bool:
            # While the row is locked its id is no other item's: the verb, which goes by id, ends this row.
            return bool(lock_by_id(Item, [item.pk])) and verb(queue, item.uid)

        if join(end, using=alias_of(Item)):
            return Response({"queue": queue.alias, done: [item.uid]})
        now = State(self.get_object().state).name.lower()
        text = f"item {item.pk} is {now}; only one that is {state.name.lower()} can be {done}"
        raise Refused(status.HTTP_409_CONFLICT, "wrong_state", text, "state")


class KeyViewSet(RowViewSet[Key]):
    """What waits and runs for each key, as this project's queues see it."""

    serializer_class = KeySerializer
    detail_serializer_class = KeyDetailSerializer
    filters = {"queue": "queue", "name": "name"}

    def get_queryset(self) -> QuerySet[Key]:
        return with_totals(Key.objects.get_queryset())


class GrantViewSet(RowViewSet[Grant]):
    """Permits that were given once."""

    serializer_class = GrantSerializer
    filters = {"queue": "key__queue", "key": "key__name"}

    def get_queryset(self) -> QuerySet[Grant]:
        return Grant.objects.select_related("key")


class LeaseViewSet(RowViewSet[Lease]):
    """Permits that were given for a time."""

    serializer_class = LeaseSerializer
    filters = {"queue": "key__queue", "key": "key__name"}

    def get_queryset(self) -> QuerySet[Lease]:
        return Lease.objects.select_related("key")
