"""Why something waits, in each case that there is."""

import pytest

from django_semq import clock, enqueue, enqueue_many, queues, semaphores, status
from django_semq.models import Semaphore
from django_semq.protocol.messages import BlockedReason
from django_semq.queue.pump import driven_by, pump


def one_waits(group: str = "") -> str | None:
    enqueue("acct-42", {}, group=group, id="waits")
    return status("waits").blocked


def test_the_key_is_full(app):
    enqueue("acct-42", {})
    assert one_waits() == "key_limit"


def test_the_group_is_full(app):
    app.configure(holder={"RULES": {"*": {"limit": 9, "groups": {"exports": 1}}}})
    enqueue("acct-42", {}, group="exports")
    assert one_waits("exports") == "group_limit"


def test_the_group_s_own_ceiling_is_named_before_the_key_s_limit(app):
    app.configure(holder={"RULES": {"*": {"limit": 1, "groups": {"exports": 1}}}})
    enqueue("acct-42", {}, group="exports")
    assert one_waits("exports") == "group_limit"


@pytest.mark.parametrize("group", [None, "exports"])
def test_the_key_or_the_group_is_paused(app, group):
    semaphores.pause("acct-42", group=group)
    semaphores.set_limit("acct-42", 0)
    assert one_waits("exports") == "paused"


def test_the_function_does_not_know_the_key(app):
    app.configure(holder={"LIMITS": "tests.queue.application.limits"})

    def limits(key):
        raise LookupError(key)

    app.on_limits = limits
    assert one_waits() == "unknown_key"


def test_what_is_free_is_kept_for_another_queue_that_holds_less(app):
    app.configure(queues=["default", "reports"], holder={"DEFAULT_LIMIT": 2})
    default, reports = queues["default"], queues["reports"]
    default.enqueue_many([{"key": "acct-42", "body": {}, "id": uid} for uid in "abc"])
    semaphores.pause("acct-42")
    reports.enqueue("acct-42", {}, id="r")
    default.release("a")
    semaphores.set_limit("acct-42", 2)  # One is free now, and one is out to the default queue.

    Semaphore.objects.update(paused=False)
    with driven_by(lambda: None):
        default.enqueue("acct-42", {}, id="d")
        pump("default", ["acct-42"], now=clock.now())
    assert default.status("c").blocked == "fair_share"
    assert reports.status("r").state == "queued"


def test_the_reason_changes_with_the_reason(app):
    enqueue("acct-42", {})
    assert one_waits() == "key_limit"
    semaphores.pause("acct-42")
    assert status("waits").blocked == "paused"
    semaphores.resume("acct-42")
    assert status("waits").blocked == "key_limit"
    semaphores.set_limit("acct-42", 2)
    assert status("waits").blocked is None
    assert [event.reason for event in app.events_of("blocked")] == ["key_limit", "paused", "key_limit"]


def test_each_group_has_a_reason_of_its_own(app):
    app.configure(holder={"RULES": {"*": {"limit": 2, "groups": {"exports": 1}}}})
    semaphores.pause("acct-42", group="paused")
    enqueue_many(
        [{"key": "acct-42", "group": group, "body": {}, "id": f"{group}{n}"} for group in "gh" for n in range(2)]
        + [{"key": "acct-42", "group": group, "body": {}, "id": group} for group in ["exports", "paused"]]
    )
    assert status("paused").blocked == "paused"
    assert {event.group: event.reason for event in app.events_of("blocked")}["paused"] == "paused"


def test_these_are_all_reasons_there_are():
    assert {str(reason) for reason in BlockedReason} == {
        "key_limit",
        "group_limit",
        "fair_share",
        "paused",
        "unknown_key",
    }
