"""The threads that call the application: what they bring back, and what becomes of those that do not come back."""

import threading
from collections.abc import Iterator
from datetime import timedelta

import pytest
from django.db import connection, connections

from django_semq.driver.crew import MAX_HUNG, Call, Crew

SOON = timedelta(seconds=0)
"""Past before anybody can look."""
LATE = timedelta(minutes=1)


class Latch:
    """What calls wait at until the test opens it; it tells when one has arrived."""

    def __init__(self) -> None:
        self.arrived = threading.Semaphore(0)
        self.open = threading.Event()

    def __call__(self) -> str:
        self.arrived.release()
        assert self.open.wait(60)
        return "through"

    def wait_for(self, calls: int) -> None:
        for _call in range(calls):
            assert self.arrived.acquire(timeout=30)


class Watched(Crew):
    """A crew whose ends the test can wait for."""

    def __init__(self, threads: int) -> None:
        self.ends = threading.Semaphore(0)
        super().__init__(threads, on_end=self.ends.release)

    def wait_for_ends(self, number: int = 1) -> None:
        for _end in range(number):
            assert self.ends.acquire(timeout=30)

    def outcomes(self, number: int = 1) -> list[Call]:
        self.wait_for_ends(number)
        return self.collect()

    def give_up(self, number: int) -> list[Call]:
        """Collect until this many calls are past their time."""
        calls: list[Call] = []
        while len(calls) < number:
            calls += self.collect()
        return calls


@pytest.fixture
def latch() -> Iterator[Latch]:
    latch = Latch()
    yield latch
    latch.open.set()


def test_a_call_brings_back_its_result_and_what_it_was_about():
    crew = Watched(1)
    crew.submit(lambda: "done", LATE, about="a batch")
    (call,) = crew.outcomes()
    assert (call.result, call.error, call.about, call.is_overdue) == ("done", None, "a batch", False)
    assert crew.collect() == []
    assert crew.free == 1


@pytest.mark.parametrize("error", [RuntimeError("no"), SystemExit(1), KeyboardInterrupt()])
def test_a_call_that_raises_anything_brings_it_back_and_its_thread_goes_on(error):
    def fail() -> None:
        raise error

    crew = Watched(1)
    for _time in range(3):
        crew.submit(fail, LATE, None)
        (call,) = crew.outcomes()
        assert (call.result, call.error) == (None, error)


def test_calls_run_beside_each_other_up_to_the_number_of_threads(latch):
    crew = Watched(3)
    for expected in [3, 2, 1]:
        assert crew.free == expected
        crew.submit(latch, LATE, None)
    latch.wait_for(3)
    assert crew.free == 0
    latch.open.set()
    assert [call.result for call in crew.outcomes(3)] == ["through"] * 3
    assert crew.free == 3


def test_one_thread_serves_many_calls_one_after_the_other():
    crew = Watched(4)
    threads = set()
    for _time in range(10):
        crew.submit(lambda: threads.add(threading.get_ident()), LATE, None)
        crew.outcomes()
    assert len(threads) <= 2  # A second one at most: the first may not have said yet that it is idle.


def test_a_call_past_its_time_is_told_and_left_alone(latch):
    crew = Watched(2)
    crew.submit(latch, SOON, "hangs")
    latch.wait_for(1)
    (call,) = crew.give_up(1)
    assert isinstance(call.error, TimeoutError)
    assert str(call.error) == "did not return within 0 s"
    assert (call.is_overdue, call.is_done) == (True, False)
    assert crew.hung == [call]
    assert crew.collect() == []


def test_its_thread_is_replaced_so_that_as_many_calls_run_as_before(latch):
    crew = Watched(1)
    crew.submit(latch, SOON, None)
    latch.wait_for(1)
    crew.give_up(1)
    assert crew.free == 1
    crew.submit(lambda: "next", LATE, None)
    assert [call.result for call in crew.outcomes()] == ["next"]


def test_what_comes_back_too_late_changes_nothing_and_the_thread_ends(latch):
    names = set(threading.enumerate())
    crew = Watched(1)
    crew.submit(latch, SOON, None)
    latch.wait_for(1)
    (call,) = crew.give_up(1)
    (thread,) = set(threading.enumerate()) - names
    latch.open.set()
    crew.wait_for_ends()
    assert crew.collect() == []
    assert (call.result, str(call.error)) == (None, "did not return within 0 s")
    assert crew.hung == []
    thread.join(30)
    assert not thread.is_alive()


def test_a_call_that_ended_in_time_but_is_looked_at_late_counts_as_ended():
    crew = Watched(1)
    crew.submit(lambda: "done", SOON, None)
    (call,) = crew.outcomes()
    assert (call.result, call.error) == ("done", None)


def test_a_crew_with_more_hung_calls_than_it_may_have_is_worn_out(latch):
    crew = Watched(2)
    for number in range(MAX_HUNG + 1):
        assert not crew.is_worn_out
        assert crew.free == 2
        crew.submit(latch, SOON, number)
        crew.give_up(1)
    latch.wait_for(MAX_HUNG + 1)
    assert crew.is_worn_out
    assert crew.free == 0

    latch.open.set()
    crew.wait_for_ends(MAX_HUNG + 1)
    crew.collect()
    assert not crew.is_worn_out
    assert crew.free == 2


def test_a_crew_knows_when_its_next_call_is_past_its_time(latch):
    crew = Watched(2)
    assert crew.next_overdue() is None
    crew.submit(latch, timedelta(minutes=5), None)
    crew.submit(latch, LATE, None)
    assert 0 < crew.next_overdue() <= 60
    latch.open.set()
    crew.outcomes(2)
    crew.submit(lambda: None, SOON, None)
    assert crew.next_overdue() == 0


def test_a_thread_has_a_connection_of_its_own_and_leaves_none_open(app):
    """CONN_MAX_AGE is 0 here, so that each call closes what it opened."""
    used = []

    def work() -> None:
        connection.ensure_connection()
        used.append((connections["default"], connection.connection))

    work()
    crew = Watched(1)
    for _time in range(2):
        crew.submit(work, LATE, None)
        crew.outcomes()
    assert len({id(opened) for _wrapper, opened in used}) == 3
    (mine, _opened), *theirs = used
    assert mine.connection is not None
    assert [wrapper.connection for wrapper, _opened in theirs] == [None, None]
