"""Clocks that are set, that differ, and the two nights of the year: waits and orders do not hang on them."""

import threading
from datetime import UTC, datetime, timedelta

import pytest
from django.test import override_settings
from django.urls import reverse
from django.utils.dateparse import parse_datetime
from rest_framework.test import APIClient

from django_semq import clock, enqueue, enqueue_many, release, status
from django_semq.driver.crew import Crew
from django_semq.driver.tick import Work
from django_semq.driver.wakeup import Wakeup
from django_semq.models import Item, Nudge

NIGHTS = {
    "Europe/Berlin": [datetime(2026, 3, 29, 0, 50, tzinfo=UTC), datetime(2026, 10, 25, 0, 50, tzinfo=UTC)],
    "America/New_York": [datetime(2026, 3, 8, 6, 50, tzinfo=UTC), datetime(2026, 11, 1, 5, 50, tzinfo=UTC)],
    "Asia/Kathmandu": [datetime(2026, 1, 1, tzinfo=UTC)],
}


@pytest.mark.parametrize(("zone", "night"), [(zone, night) for zone, nights in NIGHTS.items() for night in nights])
def test_in_the_nights_when_clocks_change_questions_come_every_minute(app, admin_user, zone, night):
    """None is left out, none comes early, and no wait is negative. (B72)"""
    app.configure({"FINISHED": "tests.queue.application.finished"})
    with override_settings(TIME_ZONE=zone):
        app.ahead = night - datetime.now(UTC)
        enqueue_many([{"key": "acct-42", "body": {}, "id": uid} for uid in "ab"])
        app.tick()
        for minute in range(25):
            app.pass_time(seconds=61)
            app.tick()
            assert len(app.asked) == minute + 1
        release("a")
        app.tick()
        assert app.admitted == ["a", "b"]
        assert app.events_of("admitted")[-1].wait_ms >= 25 * 61 * 1000
        assert status("b").enqueued_at < status("b").admitted_at
        row = Item.objects.get(uid="b")
        client = APIClient()
        client.force_login(admin_user)
        shown = client.get(reverse("django_semq:item-detail", args=[row.pk])).json()
        assert parse_datetime(shown["admitted_at"]) == row.admitted_at
        assert parse_datetime(shown["enqueued_at"]) == row.enqueued_at


def test_hosts_whose_clocks_differ_serve_in_order_and_lose_nothing(app):
    """By less than a hand-over may take: nobody takes another's for late. (B40)"""
    app.configure({"ATTEMPT_TIMEOUT": 60})
    skews = [timedelta(seconds=seconds) for seconds in (0, 3, -3, 25, -25)]
    for number in range(20):
        app.ahead = skews[number % len(skews)]
        enqueue("acct-42", {}, id=f"{number:02}")
    for number in range(20):
        app.ahead = skews[number * 2 % len(skews)]
        app.tick()
        assert app.admitted[number:] == [f"{number:02}"]
        app.ahead = skews[number * 3 % len(skews)]
        assert release(f"{number:02}")
    assert not Item.objects.exists()
    assert not Nudge.objects.filter(returned__lt=0).exists()


def test_no_number_of_wake_ups_makes_the_time_of_a_call_shorter(app, monkeypatch):
    """Nor does a clock that is set meanwhile. (B116)"""
    app.configure({"ATTEMPT_TIMEOUT": 60})
    passed, ends = [clock.monotonic()], threading.Event()
    began = threading.Event()
    monkeypatch.setattr(clock, "monotonic", lambda: passed[0])

    def hang(items):
        began.set()
        assert ends.wait(60)

    app.on_admit = hang
    wakeup = Wakeup()
    work = Work(Crew(1, on_end=wakeup.set), wakeup)
    enqueue("acct-42", {}, id="a")
    work.advance(clock.now())
    assert began.wait(60)
    try:
        for _wake_up in range(118):
            passed[0] += 0.5
            app.pass_time(seconds=-30)
            wakeup.set()
            work.wait(1)
            work.advance(clock.now())
            assert (len(work.crew.running), len(work.crew.hung)) == (1, 0)
        passed[0] += 1.1
        work.advance(clock.now())
        assert (len(work.crew.running), len(work.crew.hung)) == (0, 1)
    finally:
        ends.set()
        while work.crew.running or work.crew.hung:
            work.wait(0.01)
            work.advance(clock.now(), takes_new=False)
