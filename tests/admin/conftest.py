from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import reverse

Commit = Callable[..., Any]


@pytest.fixture
def operator(db: None) -> Client:
    """A superuser, logged in."""
    client = Client()
    client.force_login(User.objects.create_superuser("operator"))
    return client


@pytest.fixture
def client_with(db: None) -> Callable[..., Client]:
    """A client that is logged in as staff with exactly these permissions."""

    def make(*codenames: str) -> Client:
        user = User.objects.create_user("staff", is_staff=True)
        user.user_permissions.set(
            Permission.objects.filter(content_type__app_label="django_semq", codename__in=codenames)
        )
        client = Client()
        client.force_login(user)
        return client

    return make


@pytest.fixture
def committed(db: None, django_capture_on_commit_callbacks: Commit) -> Iterator[Callable[..., Any]]:
    """Call something and commit, so that what follows a commit happens: what fits the limit is admitted."""

    def call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with django_capture_on_commit_callbacks(execute=True):
            return function(*args, **kwargs)

    return call


@pytest.fixture
def act(committed: Callable[..., Any]) -> Callable[..., Any]:
    """Run an action on these rows from their list, through its question."""

    def act(client: Client, action: str, *rows: Any, **fields: Any) -> Any:
        url = reverse(f"admin:django_semq_{rows[0]._meta.model_name}_changelist")
        answer = {"action": action, "_selected_action": [row.pk for row in rows], "confirmed": "yes"}
        return committed(client.post, url, {**answer, **fields}, follow=True)

    return act


def logged() -> list[tuple[str, str]]:
    """What the admin's log says: (row, message), oldest first."""
    return list(LogEntry.objects.order_by("pk").values_list("object_repr", "change_message"))


def messages_of(response: Any) -> list[str]:
    return [str(message) for message in response.context["messages"]]
