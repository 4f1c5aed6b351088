"""Clients that know nothing of this library share a holder over real sockets."""

import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from django_semq.holder import clients
from django_semq.invariants import audit
from django_semq.models import IssuedGrant, Semaphore
from tests.concurrency import HANDS_TO_NOBODY, QUIET, STARTS
from tests.concurrency.observer import exceeded, peaks
from tests.concurrency.states import wait_until
from tests.services.client import Client

pytestmark = [pytest.mark.processes, pytest.mark.django_db(transaction=True)]

KEYS = ["acct/1", "acct/2", "pool"]
LIMIT = 3
ITEMS = 60
GRANT_TIMEOUT = 2.0


def test_two_plain_clients_with_losses_keep_the_limit_and_leave_nothing_behind(project, spawn, observer):
    project(
        QUEUES={"default": HANDS_TO_NOBODY},
        HOLDER={"DEFAULT_LIMIT": LIMIT, "GRANT_TIMEOUT": GRANT_TIMEOUT},
        DRIVER=QUIET | {"POLL_INTERVAL": 0.5},
    )
    server = spawn("tests.services.server")
    driver = spawn("django", "semq_run")
    port = int(server.wait_for_line("port", STARTS).split()[1])
    driver.wait_for_line("driving", STARTS)
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    services = [Client(name, clients.add(name), port, observer, seed) for name in ("shop", "mail")]

    with ThreadPoolExecutor() as threads:
        for done in [threads.submit(service.run, KEYS, ITEMS) for service in services]:
            done.result(timeout=300)

    for service in services:
        print(f"{service.peer.name}: lost {dict(service.lost)}")
        assert service.lost["requests"]
        assert service.lost["replies"]
    events = observer.events()
    print(f"most at once: {peaks(events).of_key}")
    assert exceeded(events, lambda key: LIMIT, lambda key, group: None) == []
    assert len(observer.items("end")) == len(set(observer.items("end"))) == 2 * ITEMS
    wait_until(lambda: not IssuedGrant.objects.exists(), GRANT_TIMEOUT + 10, "all permits back without a message")
    assert set(Semaphore.objects.values_list("footprint", flat=True)) == {0}
    assert list(audit()) == []
