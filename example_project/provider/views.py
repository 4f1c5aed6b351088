"""The page, what it asks for every second, and its way to enqueue tasks. All else it does through the REST API."""

from collections import defaultdict

from django import forms
from django.contrib.auth.decorators import permission_required
from django.contrib.auth.views import LoginView
from django.db import transaction
from django.db.models import Count, Q
from django.http import HttpRequest, JsonResponse
from django.views.decorators.http import require_GET, require_POST
from django.views.generic import TemplateView

from django_semq import semaphores
from django_semq.models import Item, KeyGroup, State
from example_project.provider.jobs import enqueue_reports
from example_project.provider.load import ACCOUNTS
from example_project.provider.models import Account
from example_project.provider.remote import AT_ONCE

PAGE = {"template_name": "provider/page.html", "extra_context": {"accounts": ACCOUNTS, "at_once": AT_ONCE}}

page = TemplateView.as_view(**PAGE)
login = LoginView.as_view(**PAGE, redirect_authenticated_user=True)


@require_GET
def state(request: HttpRequest) -> JsonResponse:
    """What waits and runs for each account, why the rest waits, and what the provider saw of it."""
    groups = groups_by_key()
    seen = {account.name: account for account in Account.objects.all()}
    names = sorted(groups.keys() | seen.keys())
    return JsonResponse({"accounts": [shown(name, groups[name], seen.get(name, Account())) for name in names]})


def groups_by_key() -> dict[str, dict[str, dict]]:
    """The items of both queues, counted: they share the limits."""
    items = Item.objects.values_list("key", "group").annotate(
        queued=Count("pk", filter=Q(state=State.QUEUED)), running=Count("pk", filter=~Q(state=State.QUEUED))
    )
    reasons = {
        (key, group): reason
        for key, group, reason in KeyGroup.objects.exclude(blocked_reason="").values_list(
            "key__name", "name", "blocked_reason"
        )
    }
    groups: dict[str, dict[str, dict]] = defaultdict(dict)
    for key, group, queued, running in items:
        blocked = reasons.get((key, group)) if queued else None
        groups[key][group] = {"queued": queued, "running": running, "blocked": blocked}
    return groups


def shown(name: str, groups: dict[str, dict], seen: Account) -> dict:
    usage = semaphores.usage(name)
    for group, counts in groups.items():
        counts["ceiling"] = usage.groups[group].ceiling if group in usage.groups else None
    return {
        "name": name,
        "limit": usage.limit,
        "queued": sum(counts["queued"] for counts in groups.values()),
        "running": sum(counts["running"] for counts in groups.values()),
        "calls": seen.calls,
        "peak": seen.peak,
        "refusals": seen.refusals,
        "groups": [{"name": group, **groups[group]} for group in sorted(groups)],
    }


class Reports(forms.Form):
    account = forms.MultipleChoiceField(choices=[(name, name) for name in ACCOUNTS])
    count = forms.IntegerField(min_value=1, max_value=200)


@require_POST
@permission_required("django_semq.add_item", raise_exception=True)
def reports(request: HttpRequest) -> JsonResponse:
    """Enqueue tasks. A view of its own names the function: who may name one to the API could run any."""
    form = Reports(request.POST)
    if not form.is_valid():
        detail = " ".join(f"{name}: {error}" for name, errors in form.errors.items() for error in errors)
        return JsonResponse({"detail": detail}, status=400)
    with transaction.atomic():
        ids = enqueue_reports(form.cleaned_data["account"], form.cleaned_data["count"])
    return JsonResponse({"queue": "tasks", "queued": ids}, status=201)
