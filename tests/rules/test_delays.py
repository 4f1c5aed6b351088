"""How long an item waits after a hand-over of it alone has failed."""

import logging
from collections.abc import Iterator
from datetime import timedelta

import pytest

from django_semq import locking
from django_semq.queue.admission import retry_delay

MINUTE = timedelta(seconds=60)
policy_says: object = None
asked: list[int] = []


def policy(attempt: int) -> object:
    asked.append(attempt)
    if isinstance(policy_says, BaseException):
        raise policy_says
    return policy_says


async def async_policy(attempt: int) -> float:
    return 1.0


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    asked.clear()
    yield
    asked.clear()


@pytest.fixture
def says(settings, monkeypatch):
    def install(value: object) -> None:
        settings.SEMQ = {"QUEUES": {"default": {"RETRY_DELAY": f"{__name__}.policy"}}}
        monkeypatch.setattr(f"{__name__}.policy_says", value)

    return install


@pytest.mark.parametrize(
    ("attempt", "seconds"), [(1, 1), (2, 2), (3, 4), (6, 32), (7, 60), (8, 60), (1000, 60), (2**31 - 1, 60)]
)
def test_without_a_policy_the_delay_doubles_up_to_a_minute_with_jitter(attempt, seconds):
    delays = {retry_delay("default", attempt) for _try in range(50)}
    assert all(timedelta(seconds=seconds / 2) <= delay <= timedelta(seconds=seconds * 1.5) for delay in delays)
    assert len(delays) > 1


@pytest.mark.parametrize("seconds", [0, 0.25, 7, 2_147_483])
def test_a_policy_decides_in_seconds(says, seconds):
    says(seconds)
    assert retry_delay("default", 4) == timedelta(seconds=seconds)
    assert asked == [4]


@pytest.mark.parametrize(
    "rubbish", [None, "7", -1, True, float("nan"), float("inf"), 2**31 / 1000, 10**400, timedelta(seconds=7)]
)
def test_a_policy_that_answers_no_delay_gives_a_minute(says, rubbish, caplog):
    says(rubbish)
    assert retry_delay("default", 1) == MINUTE
    assert "RETRY_DELAY said" in caplog.text


def test_a_policy_that_raises_gives_a_minute(says, caplog):
    says(RuntimeError("no idea"))
    assert retry_delay("default", 1) == MINUTE
    assert "no idea" in caplog.text


@pytest.mark.parametrize("path", ["no.such.policy", f"{__name__}.async_policy", f"{__name__}.MINUTE"])
def test_a_policy_that_cannot_be_called_gives_a_minute_and_says_so(settings, path, caplog):
    settings.SEMQ = {"QUEUES": {"default": {"RETRY_DELAY": path}}}
    with caplog.at_level(logging.ERROR):
        assert retry_delay("default", 1) == MINUTE
    assert path in caplog.text


@pytest.mark.django_db(transaction=True)
def test_a_policy_is_not_asked_inside_a_transaction_of_ours(says):
    says(1)
    with pytest.raises(locking.TransactionOpen):
        locking.run(lambda: retry_delay("default", 1), using="default")
    assert asked == []
