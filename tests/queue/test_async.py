"""The verbs for async code are the same verbs."""

import asyncio
import inspect

import pytest
from asgiref.sync import async_to_sync

import django_semq
from django_semq import InvalidItem
from django_semq.queue.items import Queue

VERBS = ["cancel", "cancel_many", "enqueue", "enqueue_many", "release", "release_many", "status", "usage"]


async def life() -> list[object]:
    return [
        (await django_semq.aenqueue("acct-42", {}, group="exports", id="a")).created,
        (await django_semq.aenqueue_many([{"key": "acct-42", "body": {}, "id": uid} for uid in "abcde"])).queued,
        await django_semq.ausage(),
        (await django_semq.astatus("a")).state,
        await django_semq.acancel("c"),
        await django_semq.acancel_many(["d", "a"]),
        await django_semq.arelease("a"),
        await django_semq.arelease_many(["b", "c"]),
        await django_semq.astatus("a"),
        await django_semq.ausage(),
    ]


def test_an_item_lives_its_life_in_async_code(app):
    assert async_to_sync(life)() == [
        True,
        ["b", "c", "d", "e"],
        {"queued": 4, "claiming": 0, "admitted": 1},
        "admitted",
        True,
        ["d"],
        True,
        ["b"],
        None,
        {"queued": 0, "claiming": 0, "admitted": 1},
    ]


def test_async_callers_at_once_are_all_served(app):
    app.configure(holder={"DEFAULT_LIMIT": None})

    async def many():
        await asyncio.gather(*(django_semq.aenqueue("acct-42", {}, id=f"{number}") for number in range(20)))
        return await django_semq.ausage()

    assert async_to_sync(many)() == {"queued": 0, "claiming": 0, "admitted": 20}


def test_errors_come_through(app):
    with pytest.raises(InvalidItem, match="key is 5"):
        async_to_sync(django_semq.aenqueue)(5, {})


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_an_async_twin_with_the_same_arguments(verb):
    plain, twin = getattr(Queue, verb), getattr(Queue, f"a{verb}")
    assert inspect.iscoroutinefunction(twin)
    assert inspect.signature(twin) == inspect.signature(plain)
    assert callable(getattr(django_semq, verb))
    assert callable(getattr(django_semq, f"a{verb}"))
