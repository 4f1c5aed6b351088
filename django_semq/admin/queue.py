"""The client's tables: what waits and why, what runs, and what it runs on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import DELETION
from django.db.models import OuterRef, QuerySet, Subquery, Sum
from django.http import HttpRequest, HttpResponse
from django.utils.functional import Promise
from django.utils.html import format_html_join
from django.utils.safestring import SafeString
from django.utils.text import Truncator
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_semq import clock
from django_semq.admin.base import (
    EMPTY,
    LISTED,
    OperatorAdmin,
    ReadOnlyAdmin,
    answered,
    group_to_click,
    is_all,
    link_to_list,
    link_to_row,
    queue_filter,
    short_id,
    shown_at,
    text_filter,
)
from django_semq.exceptions import UnknownQueue
from django_semq.locking import join, lock_by_id
from django_semq.models import (
    Driver,
    Grant,
    Item,
    Key,
    KeyGroup,
    Lease,
    Nudge,
    Semaphore,
    State,
)
from django_semq.protocol.messages import BlockedReason
from django_semq.queue.items import Queue, queues
from django_semq.rows import alias_of, chunks

REASONS: dict[str, Promise] = {
    BlockedReason.KEY_LIMIT: _("the limit of the key is reached"),
    BlockedReason.GROUP_LIMIT: _("the ceiling of the group is reached"),
    BlockedReason.FAIR_SHARE: _("what is left belongs to older or smaller demand"),
    BlockedReason.PAUSED: _("paused by an operator"),
    BlockedReason.UNKNOWN_KEY: _("the LIMITS function does not know the key"),
}

CHANGED = _("gone or changed meanwhile")

BODY_SHOWN = 10_000
"""Characters of a body on its item's page: enough to recognise it, and a page of a megabyte helps nobody."""


def reason_text(reason: str) -> str:
    return f"{reason}: {REASONS[reason]}" if reason in REASONS else reason


class StateFilter(admin.SimpleListFilter):
    title = _("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [(state.name.lower(), state.label) for state in State]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Item]) -> QuerySet[Item]:
        state = {state.name.lower(): state for state in State}.get(self.value() or "")
        return queryset if state is None else queryset.filter(state=state)


class ReasonFilter(admin.SimpleListFilter):
    title = _("reason")
    parameter_name = "reason"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(reason, reason) for reason in BlockedReason]

    def queryset(self, request: HttpRequest, queryset: QuerySet[KeyGroup]) -> QuerySet[KeyGroup]:
        return queryset.filter(blocked_reason=self.value()) if self.value() in REASONS else queryset


class SetAsideFilter(admin.SimpleListFilter):
    title = _("set aside")
    parameter_name = "set_aside"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [("yes", _("Yes"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Key]) -> QuerySet[Key]:
        return queryset.filter(set_aside_until__gt=clock.now()) if self.value() == "yes" else queryset


@admin.register(Item)
class ItemAdmin(OperatorAdmin):
    list_display = ("uid", "queue", "key", "group", "state", "waits", "enqueued_at", "attempt", "error")
    list_filter = (
        queue_filter(Item),
        StateFilter,
        text_filter("key", _("key")),
        text_filter("group", _("group")),
    )
    search_fields = ("uid", "key")
    search_help_text = _("A whole id, or else a whole key.")
    actions = asking_actions = ("release_items", "cancel_items")
    fieldsets = (
        (
            None,
            {"fields": ("uid", "queue", "key_link", "group", "state", "waits_for", "waits_since")},
        ),
        (_("Hand-over"), {"fields": ("attempt", "last_error", "handed_over", "started", "due")}),
        (_("Way through the queue"), {"fields": ("enqueued_at", "admitted_at", "permit", "row")}),
        (_("Body"), {"fields": ("content",)}),
    )

    def asking_actions_of(self, row: Item) -> tuple[str, ...]:
        return {State.QUEUED: ("cancel_items",), State.ADMITTED: ("release_items",)}.get(State(row.state), ())

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        key = Key.objects.filter(queue=OuterRef("queue"), name=OuterRef("key"))
        group = KeyGroup.objects.filter(key__queue=OuterRef("queue"), key__name=OuterRef("key"), name=OuterRef("group"))
        items: QuerySet[Any] = (
            super()
            .get_queryset(request)
            .defer("body")
            .annotate(
                key_row=Subquery(key.values("pk")),
                set_aside_until=Subquery(key.values("set_aside_until")),
                set_aside_error=Subquery(key.values("error")),
                blocked_reason=Subquery(group.values("blocked_reason")),
                blocked_at=Subquery(group.values("blocked_at")),
            )
        )
        return items

    @admin.display(description=_("row"))
    def row(self, item: Item) -> int:
        return item.pk

    @admin.display(description=_("waits for"))
    def waits(self, item: Any) -> str:
        if _is_set_aside(item):
            return gettext("key set aside")
        return item.blocked_reason or EMPTY if item.state == State.QUEUED else EMPTY

    @admin.display(description=_("waits for"))
    def waits_for(self, item: Any) -> str:
        if _is_set_aside(item):
            return gettext("its key is set aside until %(at)s after an error: %(error)s") % {
                "at": shown_at(item.set_aside_until),
                "error": item.set_aside_error,
            }
        if item.state != State.QUEUED:
            return EMPTY
        return reason_text(item.blocked_reason or "") or gettext("nobody has looked at it yet")

    @admin.display(description=_("since"))
    def waits_since(self, item: Any) -> str:
        return shown_at(item.blocked_at) if item.state == State.QUEUED and not _is_set_aside(item) else EMPTY

    @admin.display(description=_("last error"))
    def error(self, item: Item) -> str:
        return Truncator(item.last_error).chars(80) or EMPTY

    @admin.display(description=_("key"))
    def key_link(self, item: Any) -> SafeString | str:
        return link_to_row(Key, item.key_row, item.key)

    @admin.display(description=_("due at"))
    def due(self, item: Item) -> str:
        return shown_at(item.due_at)

    @admin.display(description=_("permit"))
    def permit(self, item: Item) -> SafeString | str:
        if item.grant_id is not None:
            return link_to_row(Grant, item.grant_id, gettext("grant in row %d") % item.grant_id)
        if item.lease_id is not None:
            return link_to_row(Lease, item.lease_id, gettext("lease in row %d") % item.lease_id)
        return EMPTY

    @admin.display(description=_("body"))
    def content(self, item: Item) -> str:
        return Truncator(item.body).chars(BODY_SHOWN)

    @admin.action(description=_("Release: give the permit back"), permissions=["operate"])
    def release_items(self, request: HttpRequest, rows: QuerySet[Item]) -> HttpResponse | None:
        form = answered(request, forms.Form)
        if not form.is_valid():
            warning = _(
                "The permits of these items go back at once, and others run on them. Work that is under way is"
                " not stopped: release only what has ended. Items without a permit are passed over."
            )
            return self.ask(request, rows, form, "release_items", warning)

        def release(queue: Queue, items: Sequence[Item]) -> list[str]:
            return queue.release_rows({item.pk: item.attempt for item in items})

        self._take(request, rows, State.ADMITTED, release, done=_("Released"), unfit=_("without a permit"))
        return None

    @admin.action(description=_("Cancel: remove from the queue"), permissions=["operate"])
    def cancel_items(self, request: HttpRequest, rows: QuerySet[Item]) -> HttpResponse | None:
        form = answered(request, forms.Form)
        if not form.is_valid():
            warning = _("These items leave the queue for good and never run. Items that wait no more are passed over.")
            return self.ask(request, rows, form, "cancel_items", warning)

        def cancel(queue: Queue, items: Sequence[Item]) -> list[str]:
            def work() -> list[str]:
                # While a row is locked its id can belong to no other item.
                ours = lock_by_id(Item, [item.pk for item in items], ("uid",), state=State.QUEUED)
                return queue.cancel_many([item.uid for item in ours])

            return join(work, using=alias_of(Item))

        self._take(request, rows, State.QUEUED, cancel, done=_("Cancelled"), unfit=_("no longer queued"))
        return None

    def _take(
        self,
        request: HttpRequest,
        rows: QuerySet[Item],
        state: State,
        verb: Callable[[Queue, Sequence[Item]], list[str]],
        *,
        done: Promise,
        unfit: Promise,
    ) -> None:
        """Do this to the items that are in this state, and say to how many, and what became of the others.

        Each part is committed before the next and logged at once, so a request that ends midway has said what it did.
        """
        ids = list(rows.values_list("pk", flat=True)[:LISTED])
        named = len(ids) if is_all(request) else len(set(request.POST.getlist(ACTION_CHECKBOX_NAME)))
        taken = 0
        passed_over: Counter[Promise] = Counter({CHANGED: named - len(ids)})
        for part in chunks(ids):
            items = list(Item.objects.filter(pk__in=part).defer("body", "last_error"))
            passed_over[CHANGED] += len(part) - len(items)
            for alias, of_queue in _by_queue(items).items():
                fitting = [item for item in of_queue if item.state == state]
                passed_over[unfit] += len(of_queue) - len(fitting)
                try:
                    gone = set(verb(queues[alias], fitting))
                except UnknownQueue:
                    passed_over[_("of a queue that is not in SEMQ['QUEUES']")] += len(fitting)
                    continue
                acted_on = [item for item in fitting if item.uid in gone]
                self.log(request, acted_on, DELETION, f"{done}.")
                taken += len(acted_on)
                passed_over[CHANGED] += len(fitting) - len(acted_on)
        self.message_user(request, f"{done}: {taken}.", messages.SUCCESS if taken else messages.WARNING)
        for why, count in passed_over.items():
            if count:
                text = _("Passed over, %(why)s: %(count)d.") % {"why": why, "count": count}
                self.message_user(request, text, messages.WARNING)


def _is_set_aside(item: Any) -> bool:
    return item.state == State.QUEUED and item.set_aside_until is not None and item.set_aside_until > clock.now()


def _by_queue(items: Sequence[Item]) -> dict[str, list[Item]]:
    by_queue: dict[str, list[Item]] = {}
    for item in items:
        by_queue.setdefault(item.queue, []).append(item)
    return by_queue


@admin.register(Key)
class KeyAdmin(ReadOnlyAdmin):
    list_display = ("name", "queue", "queued", "claiming", "admitted", "due", "aside_until", "failure")
    list_filter = (queue_filter(Key), text_filter("key", _("key"), "name"), SetAsideFilter)
    ordering = ("queue", "name")
    search_fields = ("name",)
    search_help_text = _("The whole name.")
    fieldsets = (
        (None, {"fields": ("name", "queue", "queued", "claiming", "admitted", "elsewhere")}),
        (_("Set aside"), {"fields": ("aside_until", "set_aside_count", "error")}),
        (
            _("Messages to the holder"),
            {
                "fields": (
                    "due", "request_seq", "applied_seq", "request_until", "request_attempt", "next_request_at",
                    "report_due", "report_attempt",
                )
            },
        ),
    )  # fmt: skip

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        groups = KeyGroup.objects.filter(key=OuterRef("pk")).order_by().values("key")
        keys: QuerySet[Any] = (
            super()
            .get_queryset(request)
            .annotate(
                sum_queued=Subquery(groups.annotate(sum=Sum("queued")).values("sum")),
                sum_claiming=Subquery(groups.annotate(sum=Sum("claiming")).values("sum")),
                sum_admitted=Subquery(groups.annotate(sum=Sum("admitted")).values("sum")),
            )
        )
        return keys

    @admin.display(description=_("queued"))
    def queued(self, key: Any) -> int:
        return key.sum_queued or 0

    @admin.display(description=_("claiming"))
    def claiming(self, key: Any) -> int:
        return key.sum_claiming or 0

    @admin.display(description=_("admitted"))
    def admitted(self, key: Any) -> int:
        return key.sum_admitted or 0

    @admin.display(description=_("due at"))
    def due(self, key: Key) -> str:
        return shown_at(key.due_at)

    @admin.display(description=_("report due at"))
    def report_due(self, key: Key) -> str:
        return shown_at(key.report_due_at)

    @admin.display(description=_("set aside until"))
    def aside_until(self, key: Key) -> str:
        return shown_at(key.set_aside_until)

    @admin.display(description=_("error"))
    def failure(self, key: Key) -> str:
        return Truncator(key.error).chars(80) or EMPTY

    @admin.display(description=_("see also"))
    def elsewhere(self, key: Key) -> SafeString:
        semaphore = Semaphore.objects.filter(name=key.name).first()
        links: list[SafeString | str] = [
            link_to_list(Item, _("items"), queue=key.queue, key=key.name),
            link_to_list(KeyGroup, _("groups"), queue=key.queue, key=key.name),
            link_to_list(Grant, _("grants"), queue=key.queue, key=key.name),
            link_to_list(Lease, _("leases"), queue=key.queue, key=key.name),
        ]
        if semaphore is not None:
            links.append(link_to_row(Semaphore, semaphore.pk, _("semaphore")))
        return format_html_join(" · ", "{}", ((link,) for link in links))


@admin.register(KeyGroup)
class KeyGroupAdmin(ReadOnlyAdmin):
    list_display = (group_to_click, "key", "queue", "queued", "claiming", "admitted", "blocked_reason", "blocked_at")
    list_filter = (
        queue_filter(Key, "key__queue"),
        text_filter("key", _("key"), "key__name"),
        text_filter("group", _("group"), "name"),
        ReasonFilter,
    )
    parents = ("key",)
    search_fields = ("key__name",)
    search_help_text = _("The whole key.")
    fields = ("key", "name", "queue", "queued", "claiming", "admitted", "waits_for", "blocked_at")

    @admin.display(description=_("queue"))
    def queue(self, group: KeyGroup) -> str:
        return group.key.queue

    @admin.display(description=_("waits for"))
    def waits_for(self, group: KeyGroup) -> str:
        return reason_text(group.blocked_reason) or EMPTY


@admin.register(Grant)
class GrantAdmin(ReadOnlyAdmin):
    list_display = (short_id, "key", "group", "permits", "claimed", "admitted", "released", "closed", "created_at")
    list_filter = (
        queue_filter(Key, "key__queue"),
        text_filter("key", _("key"), "key__name"),
        text_filter("group", _("group")),
        "closed",
    )
    parents = ("key",)
    search_fields = ("uid", "key__name")
    search_help_text = _("A whole id, or else a whole key.")


@admin.register(Lease)
class LeaseAdmin(ReadOnlyAdmin):
    list_display = (short_id, "key", "group", "state", "permits", "drawn", "released", "expires_at")
    list_filter = (
        queue_filter(Key, "key__queue"),
        text_filter("key", _("key"), "key__name"),
        text_filter("group", _("group")),
        "state",
    )
    parents = ("key",)
    search_fields = ("uid", "key__name")
    search_help_text = _("A whole id, or else a whole key.")


@admin.register(Nudge)
class NudgeAdmin(ReadOnlyAdmin):
    list_display = (
        "id",
        "queue",
        "key",
        "group",
        "queued_delta",
        "returned",
        "grant_id",
        "lease_id",
        "created_at",
    )
    list_filter = (queue_filter(Nudge), text_filter("key", _("key")), text_filter("group", _("group")))
    search_fields = ("key",)
    search_help_text = _("The whole key.")


@admin.register(Driver)
class DriverAdmin(ReadOnlyAdmin):
    list_display = ("id", "wake_asked_at")
