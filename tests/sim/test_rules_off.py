"""The proof that the proof works: with a rule switched off, the same history breaks the invariant that needs it.

A rule is one function, replaced, or a piece of its source. The history opens with the steps and faults for which the
rule is there, and goes on as its seed has it; it is green with the rule and red without.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from importlib.util import find_spec
from typing import Any, NamedTuple
from unittest import mock

import pytest

from django_semq.holder import ledger, service
from django_semq.models import IssuedGrant
from django_semq.protocol.messages import Verdict
from django_semq.queue import admission, pump
from tests.sim import openings
from tests.sim.faults import SMALL, Faults
from tests.sim.invariants import Broken
from tests.sim.peer import Held, Peer
from tests.sim.rewriting import rewritten
from tests.sim.walk import play
from tests.sim.world import World

pytestmark = [pytest.mark.usefixtures("sim"), pytest.mark.databases("sqlite")]

SEED = 1
STEPS = 100
SOON = 2000
"""Steps within which a missing rule is missed."""
off = mock.patch.object


# ---------------------------------------------------------------------------------------------- the holder's rules


def increments(grant: Any, *, claimed: int, released: int, closed: bool) -> Verdict:
    grant.claimed = min(grant.claimed + claimed, grant.permits)
    grant.released = min(grant.released + released, grant.claimed)
    return _closed(grant, closed)


def last_word(grant: Any, *, claimed: int, released: int, closed: bool) -> Verdict:
    grant.claimed = min(claimed, grant.permits)
    grant.released = min(released, grant.claimed)
    return _closed(grant, closed)


def claims_after_the_clamp(grant: Any, *, claimed: int, released: int, closed: bool) -> Verdict:
    grant.claimed = max(grant.claimed, claimed)
    grant.permits = max(grant.permits, grant.claimed)
    grant.released = max(grant.released, min(released, grant.claimed))
    return _closed(grant, closed)


def _closed(grant: Any, closed: bool) -> Verdict:
    if closed:
        ledger.clamp(grant)
    return Verdict.CLAMPED if grant.clamped else Verdict.OK


def timeout_frees_claims(books: service.Books, semaphore: Any) -> None:
    for row in IssuedGrant.objects.filter(semaphore=semaphore, clamped=False, claim_until__lte=books.now):
        grant = books.issued.setdefault(row.uid, row)
        before = ledger.footprint(grant)
        ledger.clamp(grant)
        grant.permits = grant.claimed = grant.released
        books.changed_grants.add(grant.uid)
        books.count(semaphore, grant, ledger.footprint(grant) - before)


def beyond_the_limit(free: int | None, rows: Any, caps: Any, **when: Any) -> Any:
    return _allocate(None, rows, caps, **when)


def beyond_the_ceilings(free: int | None, rows: Any, caps: Any, **when: Any) -> Any:
    return _allocate(free, rows, {}, **when)


_allocate = service.allocate


# --------------------------------------------------------------------------------------------- the client's rules


def start_before_the_reply(peer: Peer, key: str, at_most: int | None = None) -> None:
    _claim(peer, key, at_most)
    for held in peer.grants.values():
        held.started = list(held.claimed)


_claim = Peer.claim


def dropped_before_its_last_word(peer: Peer, held: Held, told: Any) -> bool:
    return held.is_final and len(held.ended) == len(held.claimed)


def returned_twice(turn: Any, returned: Counter[int]) -> None:
    _fold_returned(turn, Counter({grant: 2 * permits for grant, permits in returned.items()}))


_fold_returned = pump._Turn.fold_returned


class Rule(NamedTuple):
    switched_off: Callable[[], AbstractContextManager[Any]]
    opening: Callable[[World], None]
    """What brings the history to where the rule matters."""
    invariant: str
    """What breaks without it."""


RULES = {
    "reports are cumulative": Rule(lambda: off(ledger, "absorb", increments), openings.a_report_is_repeated, "I5"),
    "of two reports the larger counts": Rule(
        lambda: off(ledger, "absorb", last_word), openings.a_report_is_overtaken, "I3"
    ),
    "no claim is accepted after the clamp": Rule(
        lambda: off(ledger, "absorb", claims_after_the_clamp), openings.a_claim_comes_after_the_clamp, "I3"
    ),
    "an item starts after its claim is confirmed": Rule(
        lambda: off(Peer, "claim", start_before_the_reply), openings.a_claim_comes_after_the_window, "I5"
    ),
    "the window's end takes back what is unclaimed only": Rule(
        lambda: off(service.Books, "clamp_overdue", timeout_frees_claims), openings.a_window_ends, "I5"
    ),
    "a grant is kept until its last word is heard": Rule(
        lambda: off(Peer, "is_settled", dropped_before_its_last_word),
        openings.an_item_ends_while_its_grant_is_clamped,
        "L1",
    ),
    "no permit is issued beyond the limit": Rule(
        lambda: off(service, "allocate", beyond_the_limit), openings.more_is_wanted_than_the_limit, "I2"
    ),
    "no permit is issued beyond a ceiling": Rule(
        lambda: off(service, "allocate", beyond_the_ceilings), openings.more_waits_than_the_ceiling, "I1"
    ),
    "a returned permit is folded once": Rule(
        lambda: off(pump._Turn, "fold_returned", returned_twice), openings.an_item_is_done, "LOG"
    ),
    "nudges are deleted by the ids that were read": Rule(
        lambda: rewritten(
            pump._Turn.take_nudges,
            "delete_by_id(Nudge, [nudge.pk for nudge in nudges])",
            "Nudge.objects.filter(queue=self.queue, key__in=list(self.keys)).delete()",
        ),
        openings.many_enqueue_and_nobody_pumps,
        "I2, I3, I6",
    ),
    "who has a key looks again after its end": Rule(
        lambda: rewritten(pump._pump_batch, "*nudged_among(queue, turn.had)", ""),
        openings.a_caller_finds_its_key_taken,
        "L2",
    ),
    "an outcome counts for its own attempt": Rule(
        lambda: rewritten(admission._record, " if row.attempt == attempts[row.pk]", ""),
        openings.an_attempt_is_overtaken,
        "P5",
    ),
    "a line of the pump": Rule(
        lambda: rewritten(pump._Turn.claim, "group.queued -= offer.got"), openings.an_item_is_done, "I2, I3, I6"
    ),
    "a line of the ledger": Rule(
        lambda: rewritten(ledger.absorb, "grant.released = max(grant.released, min(released, grant.claimed))"),
        openings.an_item_is_done,
        "I2, I3, I6",
    ),
    "a line of the service": Rule(
        lambda: rewritten(service.Books.issue, "self.count(semaphore, grant, permits)"),
        openings.an_item_is_done,
        "I2, I3, I6",
    ),
    "a line of admission": Rule(
        lambda: rewritten(admission._record, "execute(Item, sql, due_at, last_error, handed_over, part)"),
        openings.an_item_is_done,
        "P5",
    ),
}

WAITING = {
    "a reply is applied once, and to the newest request": "django_semq.queue.grants",
    "a reply to a sync brings no leases": "django_semq.queue.leases",
    "a refresh does not revive a stopped lease": "django_semq.queue.leases",
    "a stop is final": "django_semq.queue.leases",
    "a lease that ran out counts while it may be in use": "django_semq.queue.leases",
    "a recalled lease counts until its stop is reported": "django_semq.queue.leases",
    "rows of requests older than the newest applied one are taken back": "django_semq.transport.http",
}
"""Rules that have no code yet, with the module that brings it. Learning after a loss of rows is for later."""


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
def test_a_rule_that_is_switched_off_is_missed(rule):
    play(world(), STEPS, rule.opening)

    crippled = world()
    with rule.switched_off(), pytest.raises(Broken) as caught:
        play(crippled, STEPS, rule.opening)

    assert caught.value.invariant == rule.invariant
    assert crippled.steps <= SOON


def world() -> World:
    """With small bounds of the pump, which a few nudges exceed."""
    return World(replace(Faults.drawn(SEED), sizes=SMALL))


@pytest.mark.parametrize(("rule", "module"), WAITING.items())
def test_a_rule_that_waits_for_its_code_has_none_yet(rule, module):
    assert find_spec(module) is None, f"{rule}: write its test"
