"""The SEMQ settings: defaults, and for each mistake a text that names the setting, its value and what to do."""

from datetime import timedelta

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings

from django_semq import Misconfigured, UnknownQueue, conf, enqueue, queues
from django_semq.models import Item

SEMQ_QUEUE = "SEMQ['QUEUES']['default']"


def queue(**entry: object) -> dict:
    return {"QUEUES": {"default": entry}}


def holder(**entry: object) -> dict:
    return {"HOLDER": entry}


def driver(**entry: object) -> dict:
    return {"DRIVER": entry}


def test_no_settings_at_all_are_one_queue_with_its_holder_in_this_project(settings):
    del settings.SEMQ
    loaded = conf.settings()
    assert list(loaded.queues) == ["default"]
    assert loaded.queues["default"].transport == "django_semq.transport.local.LocalTransport"
    assert loaded.queues["default"].client_id == "default"
    assert conf.problems() == []


def test_every_setting_has_its_documented_default(settings):
    settings.SEMQ = {}
    loaded = conf.settings()
    one = loaded.queues["default"]
    assert one.admit == "django_semq.driver.djangoq.admit"
    assert (one.finished, one.retry_delay, one.transport_options) == (None, None, {})
    assert one.finished_check == timedelta(seconds=60)
    assert one.attempt_timeout == timedelta(seconds=60)
    assert one.max_admit_batch == 100
    assert one.max_body_bytes == 1024 * 1024
    assert loaded.holder == conf.Holder(
        default_limit=1,
        limits=None,
        rules={},
        grant_timeout=timedelta(seconds=30),
        lease_ttl=timedelta(seconds=300),
        dead_after=None,
    )
    assert loaded.driver == conf.Driver(
        schedule=True,
        wake=True,
        poll_interval=timedelta(seconds=0.5),
        tick_seconds=timedelta(seconds=20),
        threads=4,
    )


def test_durations_are_seconds_whole_or_not(settings):
    settings.SEMQ = queue(FINISHED_CHECK=1.5, ATTEMPT_TIMEOUT=2_147_483)
    assert conf.queue("default").finished_check == timedelta(seconds=1.5)
    assert conf.queue("default").attempt_timeout == timedelta(seconds=2_147_483)


SECONDS = "Give seconds above 0 and at most 2147483."
COUNT = "Give a whole number from 1 to 2147483647."
PATH = "Give a dotted path, as in 'shop.jobs.admit'."
LIMIT = "give a whole number from 0 (blocks) to 2147483647, or None (unlimited)."
IDENTITY = "Give a text of 1 to 255 characters that no other queue or service uses."


@pytest.mark.parametrize(
    ("given", "setting", "value", "what_to_do"),
    [
        (None, "SEMQ", "None", "Give a dict."),
        ({"QUEUES": []}, "SEMQ['QUEUES']", "[]", "Give a dict with an entry for each queue alias."),
        ({"QUEUES": {}}, "SEMQ['QUEUES']", "{}", "Give a dict with an entry for each queue alias."),
        ({"QUEUES": {"": {}}}, "SEMQ['QUEUES']", "''", "Give aliases of 1 to 64 characters."),
        ({"QUEUES": {"x" * 65: {}}}, "SEMQ['QUEUES']", "'xxxxx", "Give aliases of 1 to 64 characters."),
        ({"QUEUES": {"default": "shop"}}, SEMQ_QUEUE, "'shop'", "Give a dict."),
        ({"HOLDER": 5}, "SEMQ['HOLDER']", "5", "Give a dict."),
        ({"DRIVER": None}, "SEMQ['DRIVER']", "None", "Give a dict."),
        (queue(CLIENT_ID=""), f"{SEMQ_QUEUE}['CLIENT_ID']", "''", IDENTITY),
        (queue(CLIENT_ID=7), f"{SEMQ_QUEUE}['CLIENT_ID']", "7", IDENTITY),
        (queue(CLIENT_ID="a\0b"), f"{SEMQ_QUEUE}['CLIENT_ID']", "'a\\x00b'", IDENTITY),
        (queue(TRANSPORT="shop.Transport"), f"{SEMQ_QUEUE}['CLIENT_ID']", "None", IDENTITY),
        (queue(ADMIT=print), f"{SEMQ_QUEUE}['ADMIT']", "<built-in function print>", PATH),
        (queue(ADMIT="admit"), f"{SEMQ_QUEUE}['ADMIT']", "'admit'", PATH),
        (queue(FINISHED=True), f"{SEMQ_QUEUE}['FINISHED']", "True", PATH),
        (queue(RETRY_DELAY=5), f"{SEMQ_QUEUE}['RETRY_DELAY']", "5", PATH),
        (queue(TRANSPORT=5), f"{SEMQ_QUEUE}['TRANSPORT']", "5", PATH),
        (queue(TRANSPORT_OPTIONS=[]), f"{SEMQ_QUEUE}['TRANSPORT_OPTIONS']", "[]", "Give a dict of keyword"),
        (queue(FINISHED_CHECK=0), f"{SEMQ_QUEUE}['FINISHED_CHECK']", "0", SECONDS),
        (queue(FINISHED_CHECK=2_147_484), f"{SEMQ_QUEUE}['FINISHED_CHECK']", "2147484", SECONDS),
        (queue(ATTEMPT_TIMEOUT="60"), f"{SEMQ_QUEUE}['ATTEMPT_TIMEOUT']", "'60'", SECONDS),
        (queue(ATTEMPT_TIMEOUT=float("nan")), f"{SEMQ_QUEUE}['ATTEMPT_TIMEOUT']", "nan", SECONDS),
        (queue(ATTEMPT_TIMEOUT=True), f"{SEMQ_QUEUE}['ATTEMPT_TIMEOUT']", "True", SECONDS),
        (queue(MAX_ADMIT_BATCH=0), f"{SEMQ_QUEUE}['MAX_ADMIT_BATCH']", "0", COUNT),
        (queue(MAX_ADMIT_BATCH=1.5), f"{SEMQ_QUEUE}['MAX_ADMIT_BATCH']", "1.5", COUNT),
        (queue(MAX_BODY_BYTES=-1), f"{SEMQ_QUEUE}['MAX_BODY_BYTES']", "-1", COUNT),
        (holder(DEFAULT_LIMIT=-1), "SEMQ['HOLDER']['DEFAULT_LIMIT']", "-1", LIMIT),
        (holder(DEFAULT_LIMIT=True), "SEMQ['HOLDER']['DEFAULT_LIMIT']", "True", LIMIT),
        (holder(DEFAULT_LIMIT=2**31), "SEMQ['HOLDER']['DEFAULT_LIMIT']", "2147483648", LIMIT),
        (holder(LIMITS="limits"), "SEMQ['HOLDER']['LIMITS']", "'limits'", PATH),
        (holder(RULES=[]), "SEMQ['HOLDER']['RULES']", "[]", "Give a dict of pattern ->"),
        (holder(RULES={5: {}}), "SEMQ['HOLDER']['RULES']", "5", "Give patterns that are text."),
        (holder(RULES={"a*": 5}), "SEMQ['HOLDER']['RULES']['a*']", "5", "Give a dict."),
        (holder(RULES={"a*": {"limit": 1.5}}), "SEMQ['HOLDER']['RULES']['a*']['limit']", "1.5", LIMIT),
        (holder(RULES={"a*": {"groups": 5}}), "SEMQ['HOLDER']['RULES']['a*']['groups']", "5", "Give a dict of group"),
        (holder(RULES={"a*": {"groups": {"g": "2"}}}), "SEMQ['HOLDER']['RULES']['a*']['groups']['g']", "'2'", LIMIT),
        (holder(GRANT_TIMEOUT=-5), "SEMQ['HOLDER']['GRANT_TIMEOUT']", "-5", SECONDS),
        (holder(LEASE_TTL=None), "SEMQ['HOLDER']['LEASE_TTL']", "None", SECONDS),
        (holder(DEAD_AFTER=0), "SEMQ['HOLDER']['DEAD_AFTER']", "0", SECONDS),
        (driver(SCHEDULE=1), "SEMQ['DRIVER']['SCHEDULE']", "1", "Give True or False."),
        (driver(WAKE="no"), "SEMQ['DRIVER']['WAKE']", "'no'", "Give True or False."),
        (driver(POLL_INTERVAL=0), "SEMQ['DRIVER']['POLL_INTERVAL']", "0", SECONDS),
        (driver(TICK_SECONDS=[20]), "SEMQ['DRIVER']['TICK_SECONDS']", "[20]", SECONDS),
        (driver(THREADS=0), "SEMQ['DRIVER']['THREADS']", "0", COUNT),
    ],
)
def test_a_mistake_is_told_with_the_setting_its_value_and_what_to_do(settings, given, setting, value, what_to_do):
    settings.SEMQ = given
    (problem,) = conf.problems()
    told = f"{problem.text} {problem.hint}"
    assert told.startswith(f"{setting} is {value}")
    assert what_to_do in told
    with pytest.raises(Misconfigured) as raised:
        conf.settings()
    assert str(raised.value) == told


@pytest.mark.parametrize(
    ("given", "where", "hint"),
    [
        ({"QUEUE": {}}, "SEMQ has no setting 'QUEUE'.", "Did you mean 'QUEUES'?"),
        (queue(ADMITS="a.b"), f"{SEMQ_QUEUE} has no setting 'ADMITS'.", "Did you mean 'ADMIT'?"),
        (queue(FINISHED_CHECK_MS=5), f"{SEMQ_QUEUE} has no setting 'FINISHED_CHECK_MS'.", "mean 'FINISHED_CHECK'?"),
        (holder(DEFAULT_LIMITS=5), "SEMQ['HOLDER'] has no setting 'DEFAULT_LIMITS'.", "mean 'DEFAULT_LIMIT'?"),
        (driver(THREAD=5), "SEMQ['DRIVER'] has no setting 'THREAD'.", "Did you mean 'THREADS'?"),
        (holder(RULES={"a*": {"limits": 5}}), "['RULES']['a*'] has no setting 'limits'.", "Did you mean 'limit'?"),
        (driver(XYZZY=5), "SEMQ['DRIVER'] has no setting 'XYZZY'.", "It has SCHEDULE, WAKE, POLL_INTERVAL"),
        (driver(**{"5": 5}), "SEMQ['DRIVER'] has no setting '5'.", "It has SCHEDULE"),
    ],
)
def test_an_unknown_name_is_told_with_the_nearest_known_one(settings, given, where, hint):
    settings.SEMQ = given
    (problem,) = conf.problems()
    assert problem.check == "semq.E002"
    assert where in problem.text
    assert hint in problem.hint


def test_two_queues_may_not_have_one_identity(settings):
    settings.SEMQ = {"QUEUES": {"default": {}, "reports": {"CLIENT_ID": "default"}}}
    (problem,) = conf.problems()
    assert problem.check == "semq.E003"
    assert problem.text == ("SEMQ['QUEUES']['reports']['CLIENT_ID'] is 'default', which queue 'default' has too.")
    assert "identity of its own" in problem.hint


def test_all_mistakes_are_listed_and_the_first_is_raised(settings):
    settings.SEMQ = {
        "QUEUES": {"default": {"CLIENT_ID": "", "ADMIT": 5, "ATTEMPT_TIMEOUT": 0}},
        "HOLDER": {"DEFAULT_LIMIT": -1},
        "DRIVER": {"THREAD": 4},
    }
    assert len(conf.problems()) == 5
    with pytest.raises(ImproperlyConfigured) as raised:
        conf.settings()
    assert conf.problems()[0].text in str(raised.value)


@pytest.mark.django_db(transaction=True)
def test_with_a_mistake_in_the_settings_nothing_is_stored(settings):
    settings.SEMQ = queue(MAX_ADMIT_BATCH=0)
    with pytest.raises(Misconfigured, match="MAX_ADMIT_BATCH"):
        enqueue("acct-42", {})
    assert not Item.objects.exists()


def test_an_overridden_setting_holds_at_once_and_no_longer():
    before = conf.settings().driver.threads
    with override_settings(SEMQ=driver(THREADS=before + 1)):
        assert conf.settings().driver.threads == before + 1
    assert conf.settings().driver.threads == before


def test_a_queue_that_is_not_configured_is_told_with_those_that_are(settings):
    settings.SEMQ = {"QUEUES": {"default": {}, "reports": {}}}
    assert list(queues) == ["default", "reports"]
    with pytest.raises(UnknownQueue, match=r"queue 'report' is not configured; SEMQ.* has default, reports"):
        queues["report"]
    with pytest.raises(LookupError):
        conf.queue("report")
