"""Several queues in one project: each with ids, counts and items of its own."""

import pytest

import django_semq
from django_semq import UnknownQueue, queues
from django_semq.models import Client, Item


@pytest.fixture
def two(app):
    app.configure(queues=["default", "reports"], holder={"DEFAULT_LIMIT": None})
    return queues["default"], queues["reports"]


def test_an_id_is_unique_in_its_queue_only(two):
    default, reports = two
    assert default.enqueue("acct-42", {}, id="a").created
    assert reports.enqueue("acct-42", {}, id="a").created
    assert not reports.enqueue("acct-42", {}, id="a").created
    assert Item.objects.filter(uid="a").count() == 2


def test_each_queue_counts_releases_and_cancels_its_own(app, two):
    default, reports = two
    default.enqueue("x", {}, id="a")
    reports.enqueue("y", {}, id="b")
    assert default.usage() == reports.usage() == {"queued": 0, "claiming": 0, "admitted": 1}
    assert default.status("b") is None
    assert default.release("b") is False
    assert default.cancel("b") is False
    assert reports.release("b") is True
    assert default.usage()["admitted"] == 1
    assert {event.id: event.queue for event in app.events_of("admitted")} == {"a": "default", "b": "reports"}


def test_each_queue_hands_over_to_its_own_function(app, settings):
    app.configure(queues=["default", "reports"])
    settings.SEMQ["QUEUES"]["reports"]["ADMIT"] = "tests.queue.test_queues.admit_reports"
    settings.SEMQ = dict(settings.SEMQ)
    queues["default"].enqueue("x", {}, id="a")
    queues["reports"].enqueue("y", {}, id="b")
    reported.clear()
    app.tick()
    assert (app.admitted, reported) == (["a"], ["b"])


reported: list[str] = []


def admit_reports(items):
    reported.extend(item.id for item in items)


def test_each_queue_is_a_client_of_its_own_at_the_holder(app, settings, two):
    settings.SEMQ["QUEUES"]["reports"]["CLIENT_ID"] = "shop-reports"
    settings.SEMQ = dict(settings.SEMQ)
    for queue in two:
        queue.enqueue("acct-42", {})
    assert set(Client.objects.values_list("client_id", "queue")) == {
        ("default", "default"),
        ("shop-reports", "reports"),
    }


def test_the_functions_of_the_package_are_the_default_queue_s(two):
    default, _reports = two
    django_semq.enqueue("acct-42", {}, id="a")
    assert default.status("a") == django_semq.status("a")
    assert default.alias == "default"


def test_an_alias_that_is_not_configured_is_told_at_once(two):
    with pytest.raises(UnknownQueue, match=r"queue 'nope' is not configured; .* default, reports"):
        queues["nope"].enqueue("acct-42", {})


def test_a_project_without_a_default_queue_says_so_when_it_is_used(settings):
    settings.SEMQ = {"QUEUES": {"reports": {}}}
    with pytest.raises(UnknownQueue, match="'default' is not configured"):
        django_semq.enqueue("acct-42", {})
