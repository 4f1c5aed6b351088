from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test.utils import CaptureQueriesContext
from rest_framework.test import APIClient

from django_semq import queues
from django_semq.models import Item

Commit = Callable[..., Any]


@pytest.fixture
def client_with(db: None) -> Callable[..., APIClient]:
    """A client that is logged in with exactly these permissions."""

    def make(*codenames: str) -> APIClient:
        user = User.objects.create_user(f"user {User.objects.count()}")
        user.user_permissions.set(
            Permission.objects.filter(content_type__app_label="django_semq", codename__in=codenames)
        )
        client = APIClient()
        client.force_login(user)
        return client

    return make


@pytest.fixture
def operator(client_with: Callable[..., APIClient]) -> APIClient:
    """May do all that the API can do, and nothing else."""
    return client_with("view_item", "add_item", "change_item", "view_key", "view_grant", "view_lease")


@pytest.fixture
def two_queues(settings: Any) -> None:
    admit = {"ADMIT": "tests.application.admit"}
    settings.SEMQ = {"QUEUES": {"default": admit, "reports": admit, "tasks": {}}}


@pytest.fixture
def enqueue(db: None, django_capture_on_commit_callbacks: Commit) -> Callable[..., Item]:
    """Enqueue and commit, so that what fits the limit is admitted; returns the row."""

    def enqueue(id: str, *, queue: str = "default", key: str = "acct-42", body: Any = None, group: str = "") -> Item:
        with django_capture_on_commit_callbacks(execute=True):
            queues[queue].enqueue(key, body, group=group, id=id)
        return Item.objects.get(queue=queue, uid=id)

    return enqueue


@pytest.fixture
def queries_of() -> Callable[[Callable[[], Any]], int]:
    """How many statements a call makes."""

    def count(call: Callable[[], Any]) -> int:
        with CaptureQueriesContext(connection) as queries:
            assert call().status_code < 300
        return len(queries)

    return count
