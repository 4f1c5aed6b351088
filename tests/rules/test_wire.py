"""The agreement with clients in other languages: what a message is, and how a wrong one is named."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_semq.protocol import wire
from django_semq.protocol.messages import (
    Blocked,
    BlockedReason,
    GrantOffer,
    GrantReport,
    GrantResult,
    GroupDemand,
    LeaseGrant,
    LeaseReport,
    PermitRequest,
    PermitSync,
    Reply,
    Verdict,
)

NOON = datetime(2026, 1, 5, 12, 0, tzinfo=UTC)
REQUEST = {
    "type": "request",
    "v": 1,
    "clientId": "shop",
    "demand": [{"group": "", "count": 12, "oldestAt": 1767614400000}],
    "grants": [{"grantId": "g-1", "claimed": 5, "released": 2}],
}
SYNC = {"type": "sync", "v": 1, "clientId": "shop", "grants": []}


def changed(message, path, value):
    """The message with what lies at this path replaced, or taken away where the value is ..."""
    message = json.loads(json.dumps(message))
    *way, last = path
    place = message
    for step in way:
        place = place[step]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return message


def refused(data) -> wire.InvalidMessage:
    with pytest.raises(wire.InvalidMessage) as raised:
        wire.read_request(data, now=NOON)
    return raised.value


def test_a_request_as_the_first_version_of_the_protocol_sends_it():
    assert wire.read_request(REQUEST, now=NOON) == PermitRequest(
        client_id="shop",
        demand=(GroupDemand("", 12, NOON),),
        grants=(GrantReport("g-1", 5, 2),),
    )


def test_a_sync():
    data = SYNC | {"leases": [{"leaseId": "l-1", "drawn": 4, "released": 1, "retired": True}]}
    assert wire.read_sync(data) == PermitSync("shop", (), (LeaseReport("l-1", 4, 1, retired=True),))


def test_an_age_needs_no_common_clock_and_goes_before_an_instant():
    data = changed(REQUEST, ["demand", 0, "ageMs"], 1500)
    (demand,) = wire.read_request(data, now=NOON).demand
    assert demand.oldest_at == NOON - timedelta(seconds=1.5)
    data = changed(data, ["demand", 0, "oldestAt"], ...)
    assert wire.read_request(data, now=NOON).demand == (demand,)


def test_fields_of_no_meaning_here_are_passed_over():
    assert wire.read_request(REQUEST | {"rev": 7, "epoch": "x"}, now=NOON) == wire.read_request(REQUEST, now=NOON)


@pytest.mark.parametrize(
    ("path", "value", "field", "text"),
    [
        (["type"], "sync", "type", "it is 'sync'; send 'request' to this address"),
        (["v"], ..., "v", "it is None; this holder speaks version 1"),
        (["v"], 2, "v", "it is 2; this holder speaks version 1"),
        (["v"], True, "v", "it is True; this holder speaks version 1"),
        (["clientId"], ..., "clientId", "it is missing"),
        (["clientId"], "", "clientId", "it is ''; give a text that is not empty"),
        (["demand"], ..., "demand", "it is missing"),
        (["demand"], [], "demand", "it is empty; name at least one group"),
        (["demand"], {}, "demand", "it is {}; send a list"),
        (["demand", 0], 5, "demand[0]", "it is 5; send an object"),
        (["demand", 0, "group"], None, "demand[0].group", "it is None; give a text"),
        (["demand", 0, "count"], -1, "demand[0].count", "it is -1; send a whole number from 0 to 2147483647"),
        (["demand", 0, "count"], True, "demand[0].count", "it is True; send a whole number from 0 to 2147483647"),
        (["demand", 0, "count"], 1.5, "demand[0].count", "it is 1.5; send a whole number from 0 to 2147483647"),
        (["demand", 0, "oldestAt"], ..., "demand[0].oldestAt", "it is missing"),
        (["demand", 0, "oldestAt"], 10**18, "demand[0].oldestAt", None),
        (["grants"], ..., "grants", "it is missing"),
        (["grants", 0, "grantId"], 7, "grants[0].grantId", "it is 7; give a text"),
        (["grants", 0, "claimed"], "5", "grants[0].claimed", None),
        (["grants", 0, "released"], 2**31, "grants[0].released", None),
        (["grants", 0, "closed"], 1, "grants[0].closed", "it is 1; send true or false"),
        (["leases"], None, "leases", "it is None; send a list"),
        (["leases"], [{"leaseId": "l"}], "leases[0].drawn", "it is missing"),
    ],
)
def test_what_is_wrong_is_named_by_its_path(path, value, field, text):
    error = refused(changed(REQUEST, path, value))
    assert error.field == field
    assert text is None or str(error) == text


@pytest.mark.parametrize("data", [None, [], "text", 5])
def test_a_message_is_an_object(data):
    assert refused(data).field is None


def test_lists_are_bounded_and_name_a_group_once():
    rows = [{"grantId": str(n), "claimed": 0, "released": 0} for n in range(501)]
    assert str(refused(REQUEST | {"grants": rows})) == "it has 501 entries; send at most 500 at a time"
    twice = REQUEST | {"demand": REQUEST["demand"] * 2}
    assert refused(twice).field == "demand[1].group"


def test_replies_say_what_the_other_side_understands():
    later = NOON + timedelta(seconds=1)
    reply = Reply(
        grant_results=(GrantResult("g-1", 5, Verdict.OK),),
        grants=(GrantOffer("g-2", "", 7),),
        leases=(LeaseGrant("l-0", "", 0, wire.EPOCH),),
        blocked=(Blocked("", BlockedReason.KEY_LIMIT),),
        contended=True,
        next_request_at=later,
    )
    request, sync = wire.read_request(REQUEST, now=NOON), wire.read_sync(SYNC | {"leases": []})
    assert wire.written_reply(reply, to=request) == {
        "grantResults": [{"grantId": "g-1", "claimed": 5, "status": "ok"}],
        "grants": [{"grantId": "g-2", "group": "", "permits": 7}],
        "blocked": [{"group": "", "reason": "key_limit"}],
        "contended": True,
        "nextRequestAt": 1767614401000,
    }
    assert wire.written_reply(reply, to=sync) == {
        "grantResults": [{"grantId": "g-1", "claimed": 5, "status": "ok"}],
        "leases": [{"leaseId": "l-0", "group": "", "permits": 0, "expiresAt": 0}],
        "contended": True,
    }


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


PATHS = [["demand"], ["demand", 0], ["demand", 0, "oldestAt"], ["grants", 0, "claimed"], ["clientId"]]


@given(path=st.sampled_from(PATHS), value=json_values)
def test_whatever_is_sent_is_read_or_named_by_its_path(path, value):
    data = changed(REQUEST, path, value)
    field = ""
    try:
        read = wire.read_request(data, now=NOON)
    except wire.InvalidMessage as error:
        field = str(error.field)
    assert field.startswith(path[0]) or (read.client_id == data["clientId"] and not field)
