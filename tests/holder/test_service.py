"""The holder by its messages, as any client sends them: what it answers, and what it counts afterwards."""

import dataclasses
from datetime import UTC, datetime, timedelta

import pytest

from django_semq import conf, locking, semaphores
from django_semq.exceptions import HolderRefused, Unprepared
from django_semq.holder import service
from django_semq.invariants import audit
from django_semq.models import Client, Demand, IssuedGrant, Semaphore
from django_semq.protocol.messages import (
    Blocked,
    BlockedReason,
    Envelope,
    GrantOffer,
    GrantReport,
    GrantResult,
    GroupDemand,
    PermitRequest,
    PermitSync,
    Reply,
    Verdict,
)

NOON = datetime(2026, 1, 5, 12, 0, tzinfo=UTC)


def exchange(messages, *, now):
    """A conversation of one exchange."""
    books = service.Books(now)
    replies = books.exchange(messages)
    books.write()
    return replies


class Holder:
    """The holder of the key "k", asked by clients that are not in this project."""

    def __init__(self, limit: int | None, **groups: int) -> None:
        self.now = NOON
        service.prepare(["k"], client_id="local", queue="", now=NOON)
        Semaphore.objects.update(has_override=True, override=limit)
        semaphore = Semaphore.objects.get(name="k")
        for name, ceiling in groups.items():
            semaphore.ceilings.create(name=name, has_override=True, override=ceiling)
        for client_id in ["shop", "mail"]:
            Client.objects.create(client_id=client_id)

    def request(self, client: str, *reports: GrantReport, age: float = 0, **wants: int) -> Reply:
        """`wants` names groups; `plain` is the one without a name."""
        demand = tuple(
            GroupDemand("" if group == "plain" else group, count, self.now - timedelta(seconds=age))
            for group, count in wants.items()
        )
        return self.send(Envelope("k", PermitRequest(client, demand, reports)))

    def sync(self, client: str, *reports: GrantReport) -> Reply:
        return self.send(Envelope("k", PermitSync(client, reports)))

    def send(self, *envelopes: Envelope) -> Reply:
        replies = locking.run(lambda: exchange(envelopes, now=self.now), using="default")
        assert audit() == []
        return replies[-1]

    @property
    def footprint(self) -> int:
        return Semaphore.objects.get(name="k").footprint


@pytest.fixture
def holder(app):
    return Holder


def test_a_request_is_answered_with_a_grant_for_each_group_that_gets_something(holder):
    holder = holder(10, exports=2)
    reply = holder.request("shop", plain=3, exports=5)
    assert [(grant.group, grant.permits) for grant in reply.grants] == [("", 3), ("exports", 2)]
    assert reply.blocked == (Blocked("exports", BlockedReason.GROUP_LIMIT),)
    assert holder.footprint == 5


def test_a_grant_counts_in_full_from_its_issue_on(holder):
    holder = holder(5)
    holder.request("shop", plain=5)
    assert holder.footprint == 5
    assert holder.request("mail", plain=1).grants == ()


def test_every_grant_has_an_id_of_its_own_that_never_comes_again(holder):
    holder = holder(100)
    ids = [grant.grant_id for _time in range(20) for grant in holder.request("shop", plain=1).grants]
    assert len(set(ids)) == 20


def test_a_claim_is_confirmed_and_the_rest_of_the_grant_stays_reserved(holder):
    holder = holder(5)
    (grant,) = holder.request("shop", plain=5).grants
    reply = holder.sync("shop", GrantReport(grant.grant_id, claimed=3, released=0))
    assert reply.grant_results == (GrantResult(grant.grant_id, 3, Verdict.OK),)
    assert holder.footprint == 5


def test_a_sync_is_answered_with_results_only(holder):
    holder = holder(5)
    holder.request("mail", plain=9)
    assert holder.sync("shop") == Reply()


def test_a_closed_grant_gives_back_what_was_not_claimed(holder):
    holder = holder(5)
    (grant,) = holder.request("shop", plain=5).grants
    reply = holder.sync("shop", GrantReport(grant.grant_id, claimed=3, released=1, closed=True))
    assert reply.grant_results == (GrantResult(grant.grant_id, 3, Verdict.CLAMPED),)
    assert holder.footprint == 2


def test_a_grant_that_is_not_claimed_in_its_window_comes_back(holder):
    """The client may have died before it heard of it. What it did claim is never taken back: it may run. (B10)"""
    holder = holder(5)
    (grant,) = holder.request("shop", plain=5).grants
    holder.sync("shop", GrantReport(grant.grant_id, claimed=2, released=0))

    holder.now += conf.settings().holder.grant_timeout - timedelta(milliseconds=1)
    assert holder.request("mail", plain=9).grants == ()
    holder.now += timedelta(milliseconds=1)
    assert [one.permits for one in holder.request("mail", plain=9).grants] == [3]
    assert holder.footprint == 5

    holder.now += timedelta(days=30)
    assert [one.permits for one in holder.request("mail", plain=9).grants] == [3]  # Its own, unclaimed, once more.
    assert IssuedGrant.objects.get(uid=grant.grant_id).claimed == 2


def test_a_claim_after_the_window_is_refused_for_good(holder):
    """(B03)"""
    holder = holder(5)
    (grant,) = holder.request("shop", plain=5).grants
    holder.now += timedelta(seconds=31)
    holder.request("mail", plain=1)
    late = GrantReport(grant.grant_id, claimed=5, released=0)
    for _copy in range(2):
        assert holder.sync("shop", late).grant_results[0].status in {Verdict.CLAMPED, Verdict.NOT_FOUND}
    assert holder.footprint == 1


def test_a_report_that_comes_again_or_too_late_changes_nothing(holder):
    """(B13)"""
    holder = holder(5)
    (grant,) = holder.request("shop", plain=5).grants
    reports = [GrantReport(grant.grant_id, claimed, released) for claimed, released in [(2, 0), (4, 1), (5, 3)]]
    for report in [*reports, *reversed(reports), *reports]:
        holder.sync("shop", report)
    assert holder.footprint == 2
    assert holder.sync("shop", reports[0]).grant_results == (GrantResult(grant.grant_id, 5, Verdict.OK),)


def test_what_comes_back_with_a_request_is_given_in_the_same_answer(holder):
    holder = holder(2)
    (grant,) = holder.request("shop", plain=2).grants
    reply = holder.request("shop", GrantReport(grant.grant_id, 2, 1), plain=1)
    assert [one.permits for one in reply.grants] == [1]
    assert holder.footprint == 2


def test_a_grant_is_forgotten_when_it_is_closed_and_all_back(holder):
    holder = holder(2)
    (grant,) = holder.request("shop", plain=2).grants
    done = GrantReport(grant.grant_id, claimed=2, released=2, closed=True)
    assert holder.sync("shop", done).grant_results[0].status is Verdict.CLAMPED
    assert not IssuedGrant.objects.exists()
    assert holder.sync("shop", done).grant_results == (GrantResult(grant.grant_id, 0, Verdict.NOT_FOUND),)


def test_an_open_grant_that_is_all_back_is_forgotten_and_in_no_operator_s_way(holder):
    holder = holder(5)
    (grant,) = holder.request("shop", plain=2).grants
    holder.sync("shop", GrantReport(grant.grant_id, 2, 2))
    assert not IssuedGrant.objects.exists()
    semaphores.pause("k")
    semaphores.set_limit("k", 1)


def test_what_a_pause_takes_back_before_any_of_it_was_claimed_leaves_no_row(holder):
    holder = holder(5)
    holder.request("shop", plain=5)
    semaphores.pause("k")
    assert not IssuedGrant.objects.exists()
    assert holder.footprint == 0
    assert audit() == []


def test_a_lowered_limit_takes_back_all_that_is_not_claimed_of_every_group(holder):
    """Which of several open grants are refused is not left to chance."""
    holder = holder(4)
    holder.request("shop", plain=2, exports=2)
    semaphores.set_limit("k", 2)
    assert not IssuedGrant.objects.exists()
    assert holder.footprint == 0


def test_a_lowered_ceiling_takes_back_what_is_not_claimed_of_its_group_only(holder):
    holder = holder(4)
    holder.request("shop", plain=2, exports=2)
    semaphores.set_ceiling("k", "exports", 1)
    assert list(IssuedGrant.objects.values_list("group", "permits")) == [("", 2)]


def test_a_window_ends_though_its_grant_replaced_just_what_came_back(holder):
    """The footprint is the same before and after, but not when something has to be taken back."""
    holder = holder(1)
    (first,) = holder.request("shop", plain=1).grants
    holder.sync("shop", GrantReport(first.grant_id, 1, 0, closed=True))
    holder.now += timedelta(seconds=40)
    holder.request("mail", plain=1)
    assert Semaphore.objects.get().clamp_at is None
    holder.request("shop", GrantReport(first.grant_id, 1, 1), plain=1)
    holder.now += timedelta(seconds=31)
    assert [offer.permits for offer in holder.request("mail", plain=1).grants] == [1]


def test_the_next_window_to_end_is_known_when_one_has_ended(holder):
    holder = holder(2)
    holder.request("shop", plain=1)
    holder.now += timedelta(seconds=20)
    holder.request("shop", exports=1)
    holder.now += timedelta(seconds=11)
    holder.sync("shop")
    assert Semaphore.objects.get().clamp_at == NOON + timedelta(seconds=50)
    holder.now += timedelta(seconds=20)
    holder.sync("shop")
    assert Semaphore.objects.get().clamp_at is None
    assert holder.footprint == 0


def test_a_late_claim_is_refused_by_the_message_that_brings_it(holder):
    holder = holder(2)
    (grant,) = holder.request("shop", plain=2).grants
    holder.now += timedelta(seconds=31)
    assert holder.sync("shop", GrantReport(grant.grant_id, 2, 0)).grant_results == (
        GrantResult(grant.grant_id, 0, Verdict.CLAMPED),
    )


def test_reports_on_what_is_unknown_or_another_s_are_not_found_and_change_nothing(holder):
    """(B17)"""
    holder = holder(5)
    (grant,) = holder.request("shop", plain=2).grants
    service.prepare(["other"], client_id="shop", queue="", now=NOON)
    stolen = GrantReport(grant.grant_id, claimed=2, released=2, closed=True)

    for reply in [
        holder.sync("mail", stolen),
        holder.send(Envelope("other", PermitSync("shop", (stolen,)))),
        holder.sync("shop", GrantReport("unknown", claimed=1, released=1)),
    ]:
        assert [result.status for result in reply.grant_results] == [Verdict.NOT_FOUND]
    assert holder.footprint == 2


def test_the_newest_word_on_what_a_client_wants_replaces_the_older(holder):
    holder = holder(0)
    holder.request("shop", plain=3, exports=2, age=5)
    holder.request("shop", plain=4)
    assert list(Demand.objects.values_list("group", "count")) == [("", 4)]
    holder.request("shop", plain=0)
    assert not Demand.objects.exists()


def test_nobody_has_waited_longer_than_since_now(holder):
    """A client whose clock is ahead must not lose every tie, nor one that is behind win all: no age is negative."""
    holder = holder(0)
    holder.request("shop", plain=1, age=-3600)
    assert Demand.objects.get().since == NOON


def test_what_one_client_would_get_is_kept_for_it_while_its_demand_is_fresh(holder):
    holder = holder(2)
    (grant,) = holder.request("shop", plain=2).grants
    holder.sync("shop", GrantReport(grant.grant_id, claimed=2, released=0, closed=True))
    holder.request("shop", plain=1)
    holder.request("mail", plain=1, age=10)
    report = GrantReport(grant.grant_id, claimed=2, released=1)

    assert holder.request("shop", report, plain=1).blocked == (Blocked("", BlockedReason.FAIR_SHARE),)
    assert [one.permits for one in holder.request("mail", plain=1, age=10).grants] == [1]


def test_a_client_that_is_silent_for_a_minute_blocks_nobody(holder):
    holder = holder(1)
    (grant,) = holder.request("shop", plain=1).grants
    holder.request("mail", plain=1)
    holder.now += conf.LOCAL_FRESH + timedelta(milliseconds=1)
    report = GrantReport(grant.grant_id, claimed=1, released=1, closed=True)
    assert [one.permits for one in holder.request("shop", report, plain=1).grants] == [1]


def test_an_evicted_client_is_refused(holder):
    holder = holder(1)
    Client.objects.filter(client_id="shop").update(evicted_at=NOON)
    refused = holder.request("shop", plain=1)
    assert isinstance(refused, HolderRefused)
    assert "client 'shop' is evicted; re-admit it or give a new CLIENT_ID" in str(refused)
    assert holder.footprint == 0


def test_keys_and_clients_without_a_row_are_named_before_anything_is_written(holder):
    holder = holder(1)
    with pytest.raises(Unprepared) as unprepared:
        holder.send(
            Envelope("k", PermitRequest("shop", (GroupDemand("", 1, NOON),))),
            Envelope("new", PermitRequest("shop", (GroupDemand("", 1, NOON),))),
        )
    assert unprepared.value.keys == ["new"]
    with pytest.raises(Unprepared):
        holder.request("stranger", plain=1)
    assert holder.footprint == 0


def test_messages_for_many_keys_are_answered_in_order(holder):
    holder = holder(1)
    service.prepare(["a", "z"], client_id="shop", queue="", now=NOON)
    keys = ["z", "k", "a"]
    replies = locking.run(
        lambda: exchange(
            [Envelope(key, PermitRequest("shop", (GroupDemand(key, 1, NOON),))) for key in keys], now=NOON
        ),
        using="default",
    )
    assert [reply.grants[0].group for reply in replies] == keys


def test_the_key_is_the_address_of_a_message_and_not_in_it():
    assert [field.name for field in dataclasses.fields(Envelope)] == ["key", "message"]
    for message in [PermitRequest, PermitSync]:
        assert not {"key", "name", "semaphore"} & {field.name for field in dataclasses.fields(message)}
    assert [field.name for field in dataclasses.fields(PermitRequest)] == ["client_id", "demand", "grants", "leases"]
    assert [field.name for field in dataclasses.fields(PermitSync)] == ["client_id", "grants", "leases"]


def test_a_report_has_cumulative_counts_of_one_grant():
    assert [field.name for field in dataclasses.fields(GrantReport)] == ["grant_id", "claimed", "released", "closed"]
    assert [field.name for field in dataclasses.fields(GrantOffer)] == ["grant_id", "group", "permits"]
