"""What the pump tells the holder: only what the holder needs to know, and both halves of it or none."""

from contextlib import contextmanager

import pytest
from django.db import DatabaseError, connection

from django_semq import cancel, clock, enqueue, enqueue_many, release, release_many, semaphores, status, usage
from django_semq.models import Grant, IssuedGrant, Item, Nudge
from django_semq.protocol.messages import Envelope, PermitRequest, PermitSync
from django_semq.queue.pump import driven_by, pump
from django_semq.transport.local import LocalTransport

sent: list[Envelope] = []


class NotingTransport(LocalTransport):
    @contextmanager
    def conversation(self, *, now):
        with super().conversation(now=now) as exchange:

            def note(messages):
                answers = exchange(messages)
                sent.extend(messages)
                return answers

            yield note


@pytest.fixture(autouse=True)
def _noting(app):
    sent.clear()
    app.configure({"CLIENT_ID": "shop", "TRANSPORT": f"{__name__}.NotingTransport"})


def requests() -> list[PermitRequest]:
    return [envelope.message for envelope in sent if isinstance(envelope.message, PermitRequest)]


def syncs() -> list[PermitSync]:
    return [envelope.message for envelope in sent if isinstance(envelope.message, PermitSync)]


def test_a_request_names_the_client_and_what_waits_in_each_group_since_when():
    with driven_by(lambda: None):
        enqueue_many(
            [{"key": "acct-42", "group": group, "body": {}, "id": f"{group}{n}"} for n in "12" for group in "gh"]
        )
        enqueue("acct-42", {}, group="h", id="h3")
    pump("default", ["acct-42"], now=clock.now())
    (request,) = requests()
    assert request.client_id == "shop"
    assert [(demand.group, demand.count) for demand in request.demand] == [("g", 2), ("h", 3)]
    for demand in request.demand:
        assert demand.oldest_at == Item.objects.get(uid=f"{demand.group}1").enqueued_at
    assert {envelope.key for envelope in sent} == {"acct-42"}


def test_all_that_waits_is_told_however_much_it_is():
    semaphores.pause("acct-42")
    enqueue_many([{"key": "acct-42", "body": {}} for _n in range(700)])
    (request,) = requests()
    assert [demand.count for demand in request.demand] == [700]


def test_items_that_have_a_permit_are_not_asked_for_again():
    enqueue_many([{"key": "acct-42", "body": {}, "id": uid} for uid in "abc"])
    enqueue("acct-42", {}, id="d")
    assert [request.demand[0].count for request in requests()] == [3, 3]


def test_where_nothing_waits_nothing_is_asked():
    enqueue("acct-42", {}, id="a")
    sent.clear()
    pump("default", ["acct-42"], now=clock.now())
    assert sent == []
    release("a")
    assert requests() == []
    assert [len(sync.grants) for sync in syncs()] == [1]


def test_only_what_has_changed_is_reported():
    semaphores.set_limit("acct-42", None)
    for uid in "abc":
        enqueue("acct-42", {}, id=uid)
    grant = Grant.objects.get(pk=Item.objects.get(uid="b").grant_id)
    sent.clear()
    release("b")
    (sync,) = syncs()
    assert [(report.grant_id, report.claimed, report.released) for report in sync.grants] == [(grant.uid, 1, 1)]


def test_counts_of_a_report_are_cumulative():
    semaphores.set_limit("acct-42", 3)
    enqueue_many([{"key": "acct-42", "body": {}, "id": uid} for uid in "abc"])
    sent.clear()
    release("a")
    release_many(["b", "c"])
    assert [(report.claimed, report.released) for sync in syncs() for report in sync.grants] == [(3, 1), (3, 3)]


def test_a_grant_is_closed_with_what_was_really_claimed_of_it():
    semaphores.set_limit("acct-42", 3)
    enqueue_many([{"key": "acct-42", "body": {}, "id": uid} for uid in "abc"])
    (closing,) = syncs()[-1].grants
    assert (closing.grant_id, closing.claimed, closing.closed) == (Grant.objects.get().uid, 3, True)


def test_a_group_that_waits_no_more_is_taken_back():
    """Else the holder would go on keeping a part for it."""
    semaphores.pause("acct-42")
    enqueue("acct-42", {}, group="g", id="a")
    sent.clear()
    cancel("a")
    (request,) = requests()
    assert [(demand.group, demand.count) for demand in request.demand] == [("g", 0)]


def test_reports_go_with_the_request_so_that_what_comes_back_is_given_at_once():
    enqueue_many([{"key": "acct-42", "body": {}, "id": uid} for uid in "ab"])
    sent.clear()
    release("a")
    first = sent[0].message
    assert isinstance(first, PermitRequest)
    assert [report.released for report in first.grants] == [1]
    assert status("b").state == "admitted"


@pytest.mark.parametrize(
    "statement",
    [
        f'INSERT INTO "{Grant._meta.db_table}"',
        f'UPDATE "{Item._meta.db_table}"',
        f'INSERT INTO "{IssuedGrant._meta.db_table}"',
        'INSERT INTO "django_semq_keygroup"',
        'INSERT INTO "django_semq_semaphore"',
    ],
)
def test_a_pump_that_fails_at_any_statement_has_done_nothing_on_either_side(app, statement):
    """Half of it done would be a permit that runs nothing, or an item that runs without one. (B05)"""
    enqueue("acct-42", {}, id="first")
    release("first")
    with driven_by(lambda: None):
        enqueue("acct-42", {}, id="a")

    def refuse(execute, sql, params, many, context):
        if sql.replace("`", '"').startswith(statement):
            raise DatabaseError(1213, "Deadlock found; try restarting transaction")
        return execute(sql, params, many, context)

    with connection.execute_wrapper(refuse), pytest.raises(DatabaseError):
        pump("default", ["acct-42"], now=clock.now(), tries=1)

    assert status("a").state == "queued"
    assert not Grant.objects.exists()
    assert not IssuedGrant.objects.exists()
    assert semaphores.usage("acct-42").footprint == 0
    assert Nudge.objects.count() == 1
    assert usage() == {"queued": 1, "claiming": 0, "admitted": 0}

    app.tick()
    assert app.admitted == ["a"]
