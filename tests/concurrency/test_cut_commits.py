"""A COMMIT whose answer never comes: done or not, whoever asked tries again, and it is done once."""

import os
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from operator import eq
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest
from django.conf import settings

from django_semq import clock, enqueue
from django_semq.driver.tick import tick
from django_semq.invariants import audit
from django_semq.models import Item, Key, State
from django_semq.queue import admission
from tests import databases
from tests.concurrency import loaded
from tests.concurrency.crowd import over_the_limit, wait_for_the_end
from tests.concurrency.observer import Observer
from tests.concurrency.rows import enqueue_all, enqueue_only, footprint, state
from tests.concurrency.states import wait_until
from tests.concurrency.wire import Wire, wire_to

pytestmark = [
    pytest.mark.processes,
    pytest.mark.databases("postgres", "mariadb"),  # SQLite has no wire.
    pytest.mark.django_db(transaction=True),
]

PATIENCE = 30
ITEMS = 30
"""That are done while the wire is cut behind COMMITs, and while it is cut before them."""
EVERY = 9
"""Of so many COMMITs one is cut."""


@pytest.fixture(scope="module")
def lasting_wire() -> Iterator[Wire]:
    """The way to the database of all processes that these tests start, and not of the tests themselves."""
    variable, default, *_others = databases.SERVERS[settings.DATABASE]
    at = urlsplit(os.environ.get(variable, default))
    with wire_to((at.hostname, at.port or urlsplit(default).port)) as wire, pytest.MonkeyPatch.context() as patch:
        account = at.netloc.rpartition("@")[0]
        patch.setenv(variable, at._replace(netloc=f"{account}@127.0.0.1:{wire.port}").geturl())
        patch.setenv("PGSSLMODE", "disable")  # It has to read what it carries.
        yield wire


@pytest.fixture
def wire(lasting_wire) -> Wire:
    """As good as new."""
    lasting_wire.mend()
    lasting_wire.cuts = 0
    return lasting_wire


class Cut(NamedTuple):
    """What a call said, whose wire was cut at one of its COMMITs."""

    name: str
    """Of the rows that are its own."""
    arrived: bool
    """The COMMIT did; only the answer did not."""
    first: Any
    """What the call returned all the same, because that COMMIT came after its own; None if it raised."""
    again: Any
    """What it returned when it was tried again."""


@pytest.fixture(params=[True, False], ids=["behind", "before"])
def cut_each(request, wire, actors, fresh) -> Callable[..., Iterator[Cut]]:
    """Cuts the wire at each COMMIT of a call, one after the other, each time with rows of their own."""

    def run(arrange: Callable[[str], list]) -> Iterator[Cut]:
        (caller,) = actors(1)
        for nth in count(1):
            name = f"{fresh} {nth}"
            call = arrange(name)
            wire.cut(partial(eq, nth), arrives=request.param)
            caller.start(call)
            outcome, said = caller.ending()
            wire.mend()
            if wire.cuts < nth:
                print(f"{wire.cuts} cuts")
                return
            yield Cut(name, request.param, said if outcome == "done" else None, caller.do(call))

    return run


def all_are_right(is_so: Callable[[str], bool], cuts: list[Cut]) -> None:
    """At the end, when a driver has done what was left to it."""

    def is_done() -> bool:
        tick(threads=0)
        return all(is_so(cut.name) for cut in cuts)

    wait_until(is_done, PATIENCE, "all is right")
    assert audit() == []


def test_an_enqueue_that_is_tried_again_stores_its_item_once(cut_each):
    cuts = []
    for cut in cut_each(lambda name: ["enqueue", "default", name, name]):
        if cut.first is None:
            assert cut.again == ([] if cut.arrived else [cut.name]), cut
        else:
            assert (cut.first, cut.again) == ([cut.name], []), cut
        assert Item.objects.filter(uid=cut.name).count() == 1, cut
        cuts.append(cut)

    assert [cut.first is None for cut in cuts] == [True] + [False] * (len(cuts) - 1)
    assert len(cuts) > 1, "the pump's COMMIT was to be cut too"
    all_are_right(lambda name: (state(name), footprint(name)) == ("admitted", 1), cuts)


@pytest.mark.parametrize(
    ("verb", "number", "left"),
    [("release", 1, ["gone", "admitted", "queued"]), ("cancel", 2, ["admitted", "gone", "queued"])],
)
def test_what_is_tried_again_takes_one_item_away(cut_each, verb, number, left):
    def arrange(name):
        enqueue_all(**{name: [f"{name} 1", f"{name} 2", f"{name} 3"]})
        return [verb, "default", f"{name} {number}"]

    cuts = []
    for cut in cut_each(arrange):
        if cut.first is None:
            assert cut.again is not cut.arrived, cut
        else:
            assert (cut.first, cut.again) == (True, False), cut
        cuts.append(cut)

    assert [cut.first is None for cut in cuts] == [True] + [False] * (len(cuts) - 1)
    assert len(cuts) > 1, "the pump's COMMIT was to be cut too"

    def is_right(name: str) -> bool:
        return [state(f"{name} {number}") for number in (1, 2, 3)] == left and footprint(name) == 1

    all_are_right(is_right, cuts)


def test_a_pump_that_is_tried_again_gives_each_permit_once(cut_each, project):
    project(HOLDER={"DEFAULT_LIMIT": 2})

    def arrange(name):
        enqueue_only(name, *(f"{name} {number}" for number in range(3)))
        return ["pump", "default", name]

    def is_right(name: str) -> bool:
        return Item.objects.filter(key=name, state=State.ADMITTED).count() == footprint(name) == 2

    cuts = list(cut_each(arrange))
    assert cuts
    all_are_right(is_right, cuts)


def test_a_hand_over_that_was_claimed_unheard_begins_again_at_its_deadline(cut_each):
    def arrange(name):
        enqueue(name, None, id=name)
        return ["claim", "default"]

    cuts = []
    for cut in cut_each(arrange):
        assert cut.first is None, cut
        assert cut.again == ([] if cut.arrived else [cut.name]), cut
        cuts.append(cut)

    assert cuts
    Item.objects.update(due_at=admission.RETRY_AT_ONCE)
    all_are_right(lambda name: Item.objects.get(uid=name).handed_over, cuts)


def test_a_hand_over_is_marked_whoever_hears_of_it(cut_each):
    def arrange(name):
        enqueue(name, None, id=name)
        (batch,) = admission.claim("default", now=clock.now(), without=(), calls=1)
        return ["mark", "default", *batch.attempts.popitem()]

    cuts = []
    for cut in cut_each(arrange):
        assert (cut.first, cut.again) == (None, True), cut
        cuts.append(cut)

    assert cuts
    all_are_right(lambda name: Item.objects.get(uid=name).handed_over, cuts)


def test_everything_runs_whosever_commits_are_cut(wire, application, crowd, spawn, observer):
    crowd.add({"driver": 2, "worker": 2, "caller": 1})
    cuts = []
    for arrives in (True, False):
        wire.cuts = 0
        wire.cut(lambda number: number % EVERY == 0, arrives=arrives)
        wait_for_released(observer, loaded(ITEMS))
        cuts.append(wire.cuts)
    wire.mend()
    assert all(child.poll() is None for children in crowd.alive.values() for child in children)
    crowd.stop("caller")
    wait_for_the_end()

    print(f"cuts behind and before: {cuts}, {len(observer.items('end'))} items")
    assert all(cuts)
    for what in ("queued", "end"):
        assert Counter(observer.items(what)) == Counter(observer.items("enqueuing")), what
    assert over_the_limit(observer.events()) == []
    assert spawn("django", "semq_doctor").finish() == ["all counters are right"]


def wait_for_released(observer: Observer, more: int) -> None:
    before = len(observer.items("released"))
    wait_until(lambda: len(observer.items("released")) >= before + more, PATIENCE, f"{more} items are done")


def test_a_cut_connection_is_no_fault_of_the_key(cut_each):
    for cut in cut_each(lambda name: ["enqueue", "default", name, name]):
        assert not Key.objects.filter(name=cut.name, set_aside_count__gt=0).exists(), cut
