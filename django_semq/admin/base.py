"""What all pages share: rows nobody edits, lists that stay quick with a million rows, actions that ask first.

A row is changed by the library's verbs alone, so a page adds, changes and deletes nothing itself. Whoever has
the change permission of a table may run its actions; each leaves an entry in the admin's log for every row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any, ClassVar, TypeVar

from django import forms
from django.contrib import admin
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import LogEntry
from django.contrib.admin.utils import display_for_value, flatten_fieldsets
from django.contrib.admin.views.main import ALL_VAR, ERROR_FLAG, ORDER_VAR, PAGE_VAR, ChangeList
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.db import connections, transaction
from django.db.models import Model, QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.functional import Promise, cached_property
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.text import Truncator
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_safe

from django_semq import clock
from django_semq.protocol.names import name_problem

LISTED = 10_000
"""Rows that a list counts and shows, and that an action on all of them reaches. Nobody leafs through more, and
counting a backlog of a million takes seconds: whoever looks for one row searches or filters."""

SHOWN = 20
"""Rows named on the page that asks before an action."""

EMPTY = "-"

View = TypeVar("View", bound=Callable[..., Any])
F = TypeVar("F", bound=forms.Form)


def outside_transactions(view: View) -> View:
    """Keep ATOMIC_REQUESTS from a view whose actions commit row by row: pumps wait for what an open one locks."""
    for alias in connections:
        transaction.non_atomic_requests(using=alias)(view)
    return view


def shown_at(at: datetime | None) -> str:
    """An instant as the admin shows its own, in the reader's zone."""
    if at is None:
        return EMPTY
    return str(_("at once")) if at <= clock.LONG_AGO else str(display_for_value(at, EMPTY))


@admin.display(description=_("group"))
def group_to_click(row: Any) -> str:
    """The name of a group's row, in a list: the default group's is empty."""
    return row.name or gettext("(no group)")


@admin.display(description=_("id"))
def short_id(row: Any) -> str:
    """Enough of a long id to tell it from the others of a list."""
    return Truncator(row.uid).chars(12)


def row_url(model: type[Model], pk: int) -> str:
    return reverse(_url_name(model, "change"), args=[pk])


def link_to_row(model: type[Model], pk: int | None, text: object) -> SafeString | str:
    return str(text) if pk is None else format_html('<a href="{}">{}</a>', row_url(model, pk), text)


def link_to_list(model: type[Model], text: object, **filters: str) -> SafeString:
    url = reverse(_url_name(model, "changelist"))
    return format_html('<a href="{}?{}">{}</a>', url, urlencode(filters), text)


def _url_name(model: type[Model], page: str) -> str:
    return f"admin:{model._meta.app_label}_{model._meta.model_name}_{page}"


class FirstRows(Paginator):
    """Pages over the first rows of a list, without a count of the rest."""

    object_list: QuerySet[Any]

    @cached_property
    def _found(self) -> int:
        # Without the order, which the database would have to make before it counts.
        return self.object_list.order_by().values("pk")[: LISTED + 1].count()

    @cached_property
    def count(self) -> int:
        return min(self._found, LISTED)

    @property
    def has_more_rows(self) -> bool:
        return self._found > LISTED


class ReadOnlyAdmin(admin.ModelAdmin):
    paginator = FirstRows
    show_full_result_count = False
    # Each would count or sort the whole table.
    show_facets = admin.ShowFacets.NEVER
    sortable_by: ClassVar[tuple[str, ...]] = ()
    ordering: ClassVar[tuple[str, ...]] = ("id",)
    list_filter: ClassVar[tuple[Any, ...]] = ()
    empty_value_display = EMPTY
    # Parents are fetched after the page: for a JOIN, MariaDB begins with the smallest table and sorts the rest.
    list_select_related = ()
    parents: ClassVar[tuple[str, ...]] = ()
    hidden_fields: ClassVar[tuple[str, ...]] = ()

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_operate_permission(self, request: HttpRequest) -> bool:
        """Whether the user may run actions: they change rows, though no page does."""
        return super().has_change_permission(request)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_queryset(request).prefetch_related(*self.parents)

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest) -> bool:
        """Only what a filter asks for: the database would look through all rows for any other column."""
        filters = self.get_list_filter(request)
        names = {one if isinstance(one, str) else getattr(one, "parameter_name", one) for one in filters}
        return lookup.removesuffix("__exact") in names

    def get_fields(self, request: HttpRequest, obj: Model | None = None) -> Any:
        return self.fields or [
            field.name for field in self.opts.concrete_fields if field.name not in self.hidden_fields
        ]

    def get_readonly_fields(self, request: HttpRequest, obj: Model | None = None) -> Any:
        return flatten_fieldsets(self.get_fieldsets(request, obj))

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Rows of exactly this name: Django's own search would take it apart at its spaces.

        One column after the other, since no index serves their OR.
        """
        for column in self.search_fields if search_term else ():
            found = queryset.filter(**{str(column): search_term})
            if found.exists():
                return found, False
        return queryset.none() if search_term else queryset, False


class OperatorAdmin(ReadOnlyAdmin):
    """A page whose rows can be acted upon, from the list and from a row's own page, after a question."""

    change_form_template = "admin/django_semq/change_form.html"
    asking_actions: ClassVar[tuple[str, ...]] = ()
    """Actions that do nothing before they are confirmed, so that a link may lead to them."""

    @outside_transactions
    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        return super().changelist_view(request, extra_context)

    def asking_actions_of(self, row: Any) -> tuple[str, ...]:
        """Those of them that may change something about this row."""
        return self.asking_actions

    def render_change_form(
        self,
        request: HttpRequest,
        context: dict[str, Any],
        add: bool = False,
        change: bool = False,
        form_url: str = "",
        obj: Any = None,
    ) -> HttpResponse:
        wanted = self.asking_actions_of(obj)
        context["actions"] = [choice for choice in self.get_action_choices(request) if choice[0] in wanted]
        return super().render_change_form(request, context, add, change, form_url, obj)

    def get_urls(self) -> list[URLPattern]:
        name = _url_name(self.model, "ask").removeprefix("admin:")
        view = require_safe(self.admin_site.admin_view(self.ask_view))
        return [path("<int:object_id>/ask/<str:action>/", view, name=name), *super().get_urls()]

    def ask_view(self, request: HttpRequest, object_id: int, action: str) -> HttpResponse:
        """The question of an action for one row; its answer goes to the list, as from there."""
        if action not in self.asking_actions or action not in self.get_actions(request):
            raise PermissionDenied
        rows = self.get_queryset(request).filter(pk=object_id)
        if not rows.exists():
            raise Http404
        function: Callable[..., HttpResponse] = getattr(self, action)
        return function(request, rows)

    def log(self, request: HttpRequest, rows: Sequence[Model], flag: int, text: str) -> None:
        user: int = request.user.pk  # type: ignore[assignment]  # nobody else gets here
        LogEntry.objects.log_actions(user, rows, flag, text)

    def name_of(self, row: Any) -> str:
        """How the question and the answer of an action name a row."""
        return str(row)

    def ask(
        self, request: HttpRequest, rows: QuerySet[Any], form: forms.Form, action: str, warning: Promise
    ) -> TemplateResponse:
        """The page that asks before an action; it sends the same action back, `confirmed`."""
        count = rows.order_by().values("pk")[:LISTED].count()
        context = {
            **self.admin_site.each_context(request),
            "title": dict(self.get_action_choices(request))[action],
            "opts": self.opts,
            "form": form,
            "action": action,
            "warning": warning,
            "names": [self.name_of(row) for row in rows[:SHOWN]],
            "more": max(0, count - SHOWN),
            "checkbox": ACTION_CHECKBOX_NAME,
            "selected": request.POST.getlist(ACTION_CHECKBOX_NAME) or [row.pk for row in rows[:SHOWN]],
            "select_across": int(is_all(request)),
            "post_to": request.get_full_path()
            if request.method == "POST"
            else reverse(_url_name(self.model, "changelist")),
        }
        request.current_app = self.admin_site.name
        return TemplateResponse(request, "admin/django_semq/ask.html", context)


def answered(request: HttpRequest, kind: type[F]) -> F:
    """The form of an action: bound once its page was sent back, so it is valid only then."""
    return kind(request.POST if "confirmed" in request.POST else None)


def is_all(request: HttpRequest) -> bool:
    """Whether the action is for the whole list and not for the rows that are named."""
    return request.POST.get("select_across", "0") == "1"


# ------------------------------------------------------------------------------------------------------------ filters


class TextFilter(admin.SimpleListFilter):
    """An exact name, typed in: a list of all names would be as long as the table."""

    template = "admin/django_semq/text_filter.html"
    column = ""

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return []

    def has_output(self) -> bool:
        return True

    def choices(self, changelist: ChangeList) -> Iterator[Any]:
        others = changelist.get_filters_params()
        others.pop(str(self.parameter_name), None)
        yield {
            "name": self.parameter_name,
            "value": self.value() or "",
            "others": [(name, value) for name, values in others.items() for value in values],
        }

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        value = self.value()
        if not value:
            return queryset
        if name_problem(value):
            return queryset.none()
        return queryset.filter(**{self.column: value})


def text_filter(name: str, title: Promise, column: str = "") -> type[TextFilter]:
    """A filter by the parameter `name`, over the column of that name unless another one is given."""
    return type("TextFilter", (TextFilter,), {"parameter_name": name, "title": title, "column": column or name})


class QueueFilter(admin.SimpleListFilter):
    """One queue of those that have rows in the table whose index begins with it."""

    title = _("queue")
    parameter_name = "queue"
    column = "queue"
    table: type[Model]

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(queue, queue) for queue in _distinct_queues(self.table)]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        queues = [queue for queue, _text in self.lookup_choices]
        if self.value() is not None and self.value() not in queues:
            return queryset.none()
        if self.value() is not None and len(queues) > 1:
            return queryset.filter(**{self.column: self.value()})
        is_narrowed = not request.GET.keys() <= {self.parameter_name, PAGE_VAR, ORDER_VAR, ALL_VAR, ERROR_FLAG}
        if is_narrowed and queryset.model is self.table:
            # What else is asked for is found by an index only if the queue is named too.
            return queryset.filter(**{f"{self.column}__in": queues})
        return queryset


def queue_filter(table: type[Model], column: str = "queue") -> type[QueueFilter]:
    return type("QueueFilter", (QueueFilter,), {"table": table, "column": column})


def _distinct_queues(table: type[Model]) -> list[str]:
    """One probe of the index for each queue: DISTINCT would read every row."""
    queues = table._default_manager.order_by("queue").values_list("queue", flat=True)
    found: list[str] = []
    queue = queues.first()
    while queue is not None:
        found.append(queue)
        queue = queues.filter(queue__gt=queue).first()
    return found
