"""The holder's tables: limits and who has what of them, and the operators' verbs for them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, ClassVar

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE
from django.core.exceptions import ValidationError
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.loader import render_to_string
from django.utils.functional import Promise
from django.utils.html import format_html_join
from django.utils.safestring import SafeString
from django.utils.text import Truncator
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_semq import clock, conf
from django_semq.admin.base import (
    EMPTY,
    LISTED,
    OperatorAdmin,
    ReadOnlyAdmin,
    answered,
    group_to_click,
    link_to_list,
    row_url,
    short_id,
    text_filter,
)
from django_semq.exceptions import InvalidLimit, UnknownClient
from django_semq.holder import clients, semaphores
from django_semq.holder.limits import limits_of
from django_semq.models import Ceiling, Client, Demand, IssuedGrant, IssuedLease, Semaphore
from django_semq.protocol.names import MAX_LENGTH

ISSUED_SHOWN = 100
"""Grants and leases named on a semaphore's page."""

UNLIMITED = "none"
RESET = "reset"

DRAINS = _("Nothing that runs is stopped: under a lower limit, nothing new runs until enough has ended.")

Change = Callable[[str, str | None], None]
"""A verb for a key, or for a group of it."""


class ChangeForm(forms.Form):
    """Asks what an action has to know, and says what it does then."""

    def change(self) -> Change:
        raise NotImplementedError

    def summary(self) -> str:
        raise NotImplementedError


class PauseForm(ChangeForm):
    def change(self) -> Change:
        return semaphores.pause

    def summary(self) -> str:
        return gettext("Paused.")


class ResumeForm(ChangeForm):
    def change(self) -> Change:
        return semaphores.resume

    def summary(self) -> str:
        return gettext("Resumed.")


class LimitForm(ChangeForm):
    limit = forms.CharField(
        label=_("Limit"),
        help_text=_(
            "A whole number, 0 blocks; “none” for unlimited; “reset” to return to what the settings and the LIMITS"
            " function say."
        ),
    )
    set_summary = _("Limit set to %s.")
    reset_summary = _("Limit reset.")

    def clean_limit(self) -> int | str | None:
        text: str = self.cleaned_data["limit"]
        if text.lower() == RESET:
            return RESET
        if text.lower() == UNLIMITED:
            return None
        # int() by itself would take digits of every script, and fail on thousands of them.
        value = int(text) if re.fullmatch(r"[+-]?[0-9]{1,50}", text) else text
        try:
            return conf.checked_limit(value, str(self.fields["limit"].label))
        except InvalidLimit as error:
            raise ValidationError(str(error)) from error

    def change(self) -> Change:
        limit = self.cleaned_data["limit"]
        return semaphores.reset_limit if limit == RESET else lambda key, group: _set(key, group, limit)

    def summary(self) -> str:
        limit = self.cleaned_data["limit"]
        return str(self.reset_summary) if limit == RESET else self.set_summary % _shown_limit(limit)


class CeilingForm(LimitForm):
    set_summary = _("Ceiling set to %s.")
    reset_summary = _("Ceiling reset.")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["limit"].label = _("Ceiling")


class GroupCeilingForm(CeilingForm):
    field_order = ("group", "limit")
    group = forms.CharField(
        label=_("Group"),
        required=False,
        strip=False,
        max_length=MAX_LENGTH,
        help_text=_("Empty: items without a group."),
    )

    def change(self) -> Change:
        change, chosen = super().change(), self.cleaned_data["group"]
        return lambda key, _group: change(key, chosen)

    def summary(self) -> str:
        return gettext("Group “%(group)s”: %(summary)s") % {
            "group": self.cleaned_data["group"],
            "summary": super().summary(),
        }


def _set(key: str, group: str | None, limit: int | None) -> None:
    if group is None:
        semaphores.set_limit(key, limit)
    else:
        semaphores.set_ceiling(key, group, limit)


def _shown_limit(limit: int | None) -> str:
    return gettext("unlimited") if limit is None else str(limit)


class LimitAdmin(OperatorAdmin):
    """Rows that stand for a key, or for a group of one."""

    def target(self, row: Any) -> tuple[str, str | None]:
        raise NotImplementedError

    def name_of(self, row: Semaphore | Ceiling) -> str:
        key, group = self.target(row)
        return key if group is None else gettext("%(key)s, group “%(group)s”") % {"key": key, "group": group}

    def asking_actions_of(self, row: Semaphore | Ceiling) -> tuple[str, ...]:
        needless = "pause" if row.paused else "resume"
        return tuple(action for action in self.asking_actions if action != needless)

    @admin.action(description=_("Pause"), permissions=["operate"])
    def pause(self, request: HttpRequest, rows: QuerySet[Any]) -> HttpResponse | None:
        warning = _("Nothing more is issued until they are resumed. What runs goes on.")
        return self.ask_and_change(request, rows, "pause", PauseForm, warning)

    @admin.action(description=_("Resume"), permissions=["operate"])
    def resume(self, request: HttpRequest, rows: QuerySet[Any]) -> HttpResponse | None:
        warning = _("Permits are issued again, within the limits.")
        return self.ask_and_change(request, rows, "resume", ResumeForm, warning)

    def ask_and_change(
        self, request: HttpRequest, rows: QuerySet[Any], action: str, kind: type[ChangeForm], warning: Promise
    ) -> HttpResponse | None:
        form = answered(request, kind)
        if not form.is_valid():
            return self.ask(request, rows, form, action, warning)
        change, summary = form.change(), form.summary()
        changed = list(rows[:LISTED])
        for row in changed:
            key, group = self.target(row)
            change(key, group)
            self.log(request, [row], CHANGE, summary if group is None else f"{self.name_of(row)}: {summary}")
        names = Truncator(", ".join(map(self.name_of, changed))).chars(200)
        self.message_user(request, f"{summary} ({names})", messages.SUCCESS)
        if len(changed) == 1 and self.get_queryset(request).filter(pk=changed[0].pk).exists():
            return HttpResponseRedirect(row_url(self.model, changed[0].pk))
        return None


@admin.register(Semaphore)
class SemaphoreAdmin(LimitAdmin):
    list_display = ("name", "limit", "source", "footprint", "headroom", "paused")
    list_filter = ("paused", "has_override")
    ordering = ("name",)
    search_fields = ("name",)
    search_help_text = _("The whole key.")
    actions = asking_actions = ("set_limit", "set_ceiling", "pause", "resume")
    fieldsets = (
        (None, {"fields": ("name", "usage", "elsewhere")}),
        (_("The LIMITS function"), {"fields": ("answer", "answered_at")}),
        (_("Upkeep"), {"fields": ("clamp_at", "idle_since")}),
    )

    def target(self, row: Semaphore) -> tuple[str, str | None]:
        return row.name, None

    @admin.action(description=_("Set limit"), permissions=["operate"])
    def set_limit(self, request: HttpRequest, rows: QuerySet[Any]) -> HttpResponse | None:
        return self.ask_and_change(request, rows, "set_limit", LimitForm, DRAINS)

    @admin.action(description=_("Set ceiling of a group"), permissions=["operate"])
    def set_ceiling(self, request: HttpRequest, rows: QuerySet[Any]) -> HttpResponse | None:
        return self.ask_and_change(request, rows, "set_ceiling", GroupCeilingForm, DRAINS)

    @admin.display(description=_("limit"))
    def limit(self, semaphore: Semaphore) -> str:
        return _shown_limit(limits_of(semaphore.name, semaphore).limit)

    @admin.display(description=_("source"))
    def source(self, semaphore: Semaphore) -> str:
        return limits_of(semaphore.name, semaphore).source

    @admin.display(description=_("headroom"))
    def headroom(self, semaphore: Semaphore) -> int | str:
        limit = limits_of(semaphore.name, semaphore).limit
        return EMPTY if limit is None else limit - semaphore.footprint

    @admin.display(description=_("usage"))
    def usage(self, semaphore: Semaphore) -> SafeString:
        usage = semaphores.usage(semaphore.name)
        more = len(usage.issued) - ISSUED_SHOWN
        context = {"usage": usage, "issued": usage.issued[:ISSUED_SHOWN], "more": max(0, more)}
        return render_to_string("admin/django_semq/usage.html", context)

    @admin.display(description=_("see also"))
    def elsewhere(self, semaphore: Semaphore) -> SafeString:
        tables = (Ceiling, Demand, IssuedGrant, IssuedLease)
        links = [link_to_list(table, table._meta.verbose_name_plural, key=semaphore.name) for table in tables]
        return format_html_join(" · ", "{}", ((link,) for link in links))


@admin.register(Ceiling)
class CeilingAdmin(LimitAdmin):
    list_display = (group_to_click, "semaphore", "ceiling", "footprint", "paused")
    list_filter = (
        text_filter("key", _("key"), "semaphore__name"),
        text_filter("group", _("group"), "name"),
        "paused",
        "has_override",
    )
    parents = ("semaphore",)
    search_fields = ("semaphore__name",)
    search_help_text = _("The whole key.")
    actions = asking_actions = ("set_ceiling", "pause", "resume")

    def target(self, row: Ceiling) -> tuple[str, str | None]:
        return row.semaphore.name, row.name

    @admin.action(description=_("Set ceiling"), permissions=["operate"])
    def set_ceiling(self, request: HttpRequest, rows: QuerySet[Any]) -> HttpResponse | None:
        return self.ask_and_change(request, rows, "set_ceiling", CeilingForm, DRAINS)

    @admin.display(description=_("ceiling"))
    def ceiling(self, row: Ceiling) -> str:
        if row.has_override:
            return _shown_limit(row.override)
        return _shown_limit(limits_of(row.semaphore.name, row.semaphore).ceiling(row.name))


@admin.register(Client)
class ClientAdmin(OperatorAdmin):
    list_display = ("client_id", "queue", "last_seen", "evicted_at")
    ordering = ("client_id",)
    search_fields = ("client_id",)
    search_help_text = _("The whole id.")
    hidden_fields = ("token_hash",)
    actions = asking_actions = ("rotate", "evict", "readmit")

    def asking_actions_of(self, row: Client) -> tuple[str, ...]:
        if row.queue:
            return ()
        return ("rotate", "readmit" if row.evicted_at else "evict")

    @admin.action(description=_("Give a new token"), permissions=["operate"])
    def rotate(self, request: HttpRequest, rows: QuerySet[Client]) -> HttpResponse | None:
        def change(name: str) -> tuple[str, str]:
            return gettext("New token."), gettext("New token, shown this once: %s") % clients.rotate(name)

        warning = _("The old token is refused at once. The new one is shown once, on the next page.")
        return self.ask_and_change(request, rows, "rotate", change, warning)

    @admin.action(description=_("Evict"), permissions=["operate"])
    def evict(self, request: HttpRequest, rows: QuerySet[Client]) -> HttpResponse | None:
        def change(name: str) -> tuple[str, str]:
            freed = clients.evict(name, now=clock.now())
            return (gettext("Evicted; permits freed: %d.") % freed,) * 2

        warning = _(
            "It is refused, and all that it holds is free at once. Evict only a client that runs nothing any more:"
            " else more may run than the limit says."
        )
        return self.ask_and_change(request, rows, "evict", change, warning)

    @admin.action(description=_("Re-admit"), permissions=["operate"])
    def readmit(self, request: HttpRequest, rows: QuerySet[Client]) -> HttpResponse | None:
        def change(name: str) -> tuple[str, str]:
            clients.readmit(name)
            return (gettext("Re-admitted."),) * 2

        return self.ask_and_change(request, rows, "readmit", change, _("It may speak again."))

    def ask_and_change(
        self,
        request: HttpRequest,
        rows: QuerySet[Client],
        action: str,
        change: Callable[[str], tuple[str, str]],
        warning: Promise,
    ) -> HttpResponse | None:
        """`change` returns what to write into the log, and what to show once."""
        form = answered(request, forms.Form)
        if not form.is_valid():
            return self.ask(request, rows, form, action, warning)
        for client in rows[:LISTED]:
            try:
                logged, shown = change(client.client_id)
            except UnknownClient as error:
                self.message_user(request, str(error), messages.ERROR)
                continue
            self.log(request, [client], CHANGE, logged)
            self.message_user(request, f"{client.client_id}: {shown}", messages.SUCCESS)
        return None


@admin.register(Demand)
class DemandAdmin(ReadOnlyAdmin):
    list_display = ("semaphore", "group", "client", "count", "since", "fresh_until")
    list_filter = (
        text_filter("key", _("key"), "semaphore__name"),
        text_filter("group", _("group")),
        text_filter("client", _("client"), "client__client_id"),
    )
    parents = ("semaphore", "client")
    search_fields = ("semaphore__name",)
    search_help_text = _("The whole key.")


class IssuedAdmin(ReadOnlyAdmin):
    list_filter: ClassVar[tuple[Any, ...]] = (
        text_filter("key", _("key"), "semaphore__name"),
        text_filter("group", _("group")),
        text_filter("client", _("client"), "client__client_id"),
    )
    parents = ("semaphore", "client")
    search_fields = ("uid", "semaphore__name")
    search_help_text = _("A whole id, or else a whole key.")


@admin.register(IssuedGrant)
class IssuedGrantAdmin(IssuedAdmin):
    list_display = (short_id, "semaphore", "group", "client", "permits", "claimed", "released", "issued_at")
    list_filter = (*IssuedAdmin.list_filter, "clamped")


@admin.register(IssuedLease)
class IssuedLeaseAdmin(IssuedAdmin):
    list_display = (short_id, "semaphore", "group", "client", "permits", "drawn", "released", "state", "expires_at")
    list_filter = (*IssuedAdmin.list_filter, "state")
