"""`async_task` with a real cluster: what it promises whatever happens to messages and workers."""

import os
import signal

import pytest
import redis
from django_q.models import Failure, OrmQ, Success
from django_q.tasks import async_task as send

from django_semq import async_task, semaphores, usage
from django_semq.driver import djangoq
from django_semq.invariants import audit
from django_semq.models import Item
from tests.e2e import application
from tests.e2e.journal import until

pytestmark = [pytest.mark.processes, pytest.mark.django_db(transaction=True)]

WORK = f"{application.MODULE}.work"
FAIL = f"{application.MODULE}.fail"
WORK_AT_GATE = f"{application.MODULE}.work_at_gate"


def everything_is_back(key: str = "acct-42") -> None:
    """No item is left, its permit is free again, and no message of its task will come again."""
    until(lambda: usage() == {"queued": 0, "claiming": 0, "admitted": 0}, "the item is gone")
    until(lambda: semaphores.usage(key).footprint == 0, "the permit is back")
    until(lambda: not OrmQ.objects.exists(), "every message was acknowledged")
    assert audit() == []


def test_a_task_whose_result_is_not_saved_runs_and_gives_its_permit_back(project, journal):
    project().qcluster()
    async_task(WORK, "order:7", key="acct-42", id="order:7", q_options={"save": False})

    journal.wait_for("end", id="order:7")
    everything_is_back()
    assert [run.attempt for run in journal.events("start")] == [1]
    assert not Success.objects.exists()


def test_a_cluster_that_saves_no_results_gives_permits_back_all_the_same(project, journal):
    project(cluster={"save_limit": -1}).qcluster()
    for number in range(3):
        async_task(WORK, f"order:{number}", key="acct-42", id=f"order:{number}")

    journal.wait_for("end", 3)
    everything_is_back()
    assert [run.id for run in journal.events("start")] == ["order:0", "order:1", "order:2"]
    assert not Success.objects.exists()


def test_a_task_that_raises_is_recorded_once_and_not_delivered_again(project, journal):
    project().qcluster()
    async_task(FAIL, "order:7", key="acct-42", id="order:7")

    failure = until(lambda: Failure.objects.filter(func=djangoq.RUN).first(), "the failure is recorded")
    everything_is_back()
    assert "this work cannot be done" in failure.result
    assert failure.attempt_count == 1
    assert len(journal.events("start", id="order:7")) == 1


def test_a_task_whose_worker_is_killed_runs_again_as_the_next_attempt(project, journal):
    # django-q2 delivers the dead worker's message again as well, before and after the item's time is up.
    impatient = project(
        {"DRIVER": {"POLL_INTERVAL": 0.2}},
        cluster={"timeout": 60, "retry": 2},
        waits={"django_semq.driver.djangoq.RUNS_FOR": 4, "django_semq.driver.djangoq.BEAT": 1},
    )
    impatient.qcluster()
    impatient.semq_run()
    async_task(WORK_AT_GATE, "order:7", key="acct-42", id="order:7")
    (run,) = journal.wait_for("start", id="order:7")
    os.kill(run.pid, signal.SIGKILL)

    journal.wait_for("end", id="order:7")
    everything_is_back()
    assert [run.attempt for run in journal.events("start")] == [1, 2]


def test_a_long_task_is_not_run_again_by_messages_that_come_again(project, journal):
    """django-q2 delivers again after `retry` what is not done yet; each life of an id is released once."""
    project(cluster={"timeout": 60, "retry": 5}).qcluster()
    async_task(WORK, "order:7", seconds=10, key="acct-42", id="order:7")
    journal.wait_for("start", id="order:7")
    row = Item.objects.get(uid="order:7").pk

    journal.wait_for("delivered", 2, func=djangoq.RUN, args=[row, 1])
    assert not journal.events("end"), "the second message came too late to say anything"
    journal.wait_for("released", id="order:7")

    async_task(WORK, "order:7", seconds=1, key="acct-42", id="order:7")
    journal.wait_for("start", 2, id="order:7")
    delivered = len(journal.events("delivered", args=[row, 1]))
    send(djangoq.RUN, row, 1)  # The first life's message once more, in the second life.
    journal.wait_for("delivered", delivered + 1, func=djangoq.RUN, args=[row, 1])
    journal.wait_for("released", 2, id="order:7")

    everything_is_back()
    starts, ends = journal.events("start"), journal.events("end")
    assert len(starts) == len(ends) == 2
    assert ends[0].at < starts[1].at
    assert len(journal.events("released")) == 2


# The rest is django-q2's business with its broker, on whatever database.

REDIS = os.environ.get("SEMQ_TEST_REDIS", "redis://127.0.0.1:6379/9")
CLUSTER = "semq-e2e"


@pytest.fixture
def messages():
    """The cluster's list of messages in Redis: `llen`, and `delete` loses them."""
    client = redis.Redis.from_url(REDIS)
    try:
        client.ping()
    except redis.ConnectionError as error:
        pytest.skip(f"no Redis: {error}")
    name = f"django_q:{CLUSTER}:q"
    client.delete(name)
    yield lambda: client.llen(name), lambda: client.delete(name)
    client.delete(name)
    client.close()


@pytest.mark.databases("sqlite")
def test_a_task_whose_message_is_lost_is_sent_again(project, journal, messages):
    waiting, lose = messages
    lossy = project(
        {"DRIVER": {"WAKE": False, "POLL_INTERVAL": 0.2}},
        cluster={"orm": None, "name": CLUSTER, "redis": REDIS},
        waits={"django_semq.queue.admission.TASK_LOST_AFTER": 1},
    )
    async_task(WORK, "order:7", key="acct-42", id="order:7")
    lossy.run("django", "semq_tick").finish()
    assert waiting() == 1
    lose()

    lossy.qcluster()
    lossy.semq_run()
    journal.wait_for("end", id="order:7")
    everything_is_back()
    assert [run.attempt for run in journal.events("start")] == [2]
