"""One run of everything due, to a fixed point. The schedule, the daemon and the command only call it.

Any number of ticks may run at once: each part claims its rows, and what another transaction has counts as due
in POLL_INTERVAL. A tick that finds nothing due makes five reads for a queue and writes nothing.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial, reduce

from django.db import DatabaseError, connections

from django_semq import clock, conf, handlers
from django_semq.driver.crew import Call, Crew
from django_semq.driver.wakeup import Wakeup
from django_semq.holder import limits, semaphores, sweep
from django_semq.locking import close, drop_if_broken, is_passing
from django_semq.models import Driver, Key
from django_semq.queue import admission
from django_semq.queue.admission import Check, HandOver
from django_semq.queue.pump import BATCH_KEYS, driven_by, nudged_after, pump
from django_semq.rows import select

logger = logging.getLogger(__name__)

INLINE_CALLS = 4
"""Hand-overs claimed at once where they are called one after the other."""


def tick(threads: int | None = None) -> datetime | None:
    """Run everything due and return when a tick is next needed, None if nothing is known to become due.

    Takes no new work after TICK_SECONDS, and then returns now once the calls under way have ended or timed out.
    `threads=0` calls the application in this thread (for tests). Safe to call at any time, twice at once, and
    again after a crash.
    """
    work = Work.inline() if threads == 0 else Work.of_process()
    ends_at = clock.monotonic() + conf.settings().driver.tick_seconds.total_seconds()
    while True:
        is_open = clock.monotonic() < ends_at
        moved = work.advance(clock.now(), takes_new=is_open)
        if moved and is_open:
            continue
        if work.is_calling:
            work.wait(conf.settings().driver.poll_interval.total_seconds())
            continue
        if not is_open:
            return clock.now()
        return work.next_due(clock.now())


@dataclass(slots=True)
class _Unmarked:
    """An outcome that could not be written, because another transaction had the row."""

    write: Callable[[datetime], bool]
    until: datetime


@dataclass
class Work:
    """What a driving process has under way. Used by one thread; the crew's threads only run the calls."""

    crew: Crew | None
    wakeup: Wakeup
    due: list[datetime] = field(default_factory=list)
    """What the last pass saw to become due."""
    unmarked: list[_Unmarked] = field(default_factory=list)
    knows_rules: bool = False
    turn: int = 0

    @classmethod
    def inline(cls) -> Work:
        return cls(crew=None, wakeup=_process().wakeup)

    @classmethod
    def of_process(cls) -> Work:
        return _process()

    @property
    def is_calling(self) -> bool:
        return self.crew is not None and bool(self.crew.running)

    def wait(self, seconds: float, also: Sequence[int] = ()) -> None:
        """Until a call ends or is past its time, somebody wakes us, one of the descriptors is readable, or this time
        is over."""
        overdue = self.crew.next_overdue() if self.crew else None
        self.wakeup.wait(seconds if overdue is None else min(seconds, overdue + 0.001), also)

    def next_due(self, now: datetime) -> datetime | None:
        """When a pass is next needed. What is due and did not move is another transaction's: look again soon."""
        poll = now + conf.settings().driver.poll_interval
        due = [at if at > now else poll for at in self.due]
        return min(due, default=None)

    def advance(self, now: datetime, *, takes_new: bool = True) -> bool:
        """One pass over everything due; True if something moved. A part that fails is logged and stops no other."""
        self.due = [poll.until for poll in self.unmarked]
        with driven_by(self.wakeup.set):
            moved = self.collect(now)
            if not self.knows_rules:
                moved |= self.part("changed rules", lambda: self.compare_rules(now))
            self.turn += 1
            aliases = list(conf.settings().queues)
            start = self.turn % len(aliases)  # No queue is always served first.
            for alias in aliases[start:] + aliases[:start]:
                # First what waits for nothing but us: most wake-ups say that an item is admitted.
                if takes_new:
                    moved |= self.part("hand-over", partial(self.hand_over, alias, now))
                    moved |= self.part("checks", partial(self.check, alias, now))
                moved |= self.part("pump", partial(self.pump, alias, now))
            moved |= self.part("the holder's chores", partial(self.do_chores, now))
        return moved

    def part(self, name: str, work: Callable[[], object]) -> bool:
        try:
            return bool(work())
        except DatabaseError as error:
            logger.log(
                logging.INFO if is_passing(error) else logging.ERROR,
                "%s: %s; done again at the next pass",
                name,
                error,
            )
            if not is_passing(error):
                _connect_anew()
        except Exception:
            logger.exception("%s failed; done again at the next pass", name)
        self.due.append(clock.LONG_AGO)
        return False

    # ------------------------------------------------------------------------------------------------------ the parts

    def pump(self, alias: str, now: datetime) -> bool:
        """Pump keys that have nudges or are due, each batch once, so that a hot key does not hold up hand-overs."""
        condition = f"queue = %s AND due_at IS NOT NULL ORDER BY due_at LIMIT {BATCH_KEYS}"
        dues = [
            (key.name, key.due_at) for key in select(Key, condition, alias, fields=["name", "due_at"]) if key.due_at
        ]
        self.due += [at for _name, at in dues if at > now][:1]
        due = {name for name, at in dues if at <= now}
        moved = False
        last: str | None = ""
        while last is not None:
            nudged, last = nudged_after(alias, last, now)
            if names := due | set(nudged):
                moved |= pump(alias, names, now=now, rounds=1).moved
                self.due.append(clock.LONG_AGO)
            due = set()
        return moved

    def hand_over(self, alias: str, now: datetime) -> bool:
        first = admission.next_hand_over(alias)
        if first is None:
            return False
        self.due.append(first)
        if first > now:
            return False
        if self.crew is not None and self.crew.is_worn_out:
            if handlers.may_complain(f"hung {alias}"):
                logger.error("queue %s: too many hung calls of admit(); this process hands over nothing", alias)
            return False
        moved = False
        spreads = self.crew is not None
        size = conf.queue(alias).max_admit_batch
        while calls := self.crew.free if self.crew is not None else INLINE_CALLS:
            batches = admission.claim(alias, now=now, without=self.busy_keys(alias), calls=calls, spreads=spreads)
            for batch in batches:
                moved = True
                self.call(partial(admission.hand_over, batch), batch, now)
            if spreads or not any(len(batch.items) == size for batch in batches):
                break  # What is left has its turn at the next pass.
        return moved

    def check(self, alias: str, now: datetime) -> bool:
        first = admission.next_check(alias)
        if first is None:
            return False
        self.due.append(first)
        if first > now:
            return False
        settings = conf.queue(alias)
        if settings.admit == conf.TASK_ADMIT:
            return admission.take_lost(alias, now=now)
        if settings.finished is None:
            return False
        moved = False
        while self.crew is None or self.crew.free > 0:
            check = admission.claim_check(alias, now=now)
            if check is None:
                break
            moved = True
            self.call(partial(admission.ask, check), check, now)
        return moved

    def busy_keys(self, alias: str) -> set[str]:
        """Keys of which nothing is handed over now. A key is in one call at a time, so one whose `admit()` hangs
        holds one thread; a batch past its time has its items due again, each alone, and those stay apart for as long
        as their call does not return."""
        if self.crew is None:
            return set()
        return {
            key
            for call in [*self.crew.running, *self.crew.hung]
            if isinstance(call.about, HandOver) and call.about.queue == alias
            if call.about.is_alone or not call.is_overdue
            for key in call.about.keys
        }

    def do_chores(self, now: datetime) -> bool:
        window_ends, is_any_idle = sweep.due(now)
        moved = False
        if window_ends is not None:
            self.due.append(window_ends)
            moved = window_ends <= now and sweep.take_back(now)
        return (is_any_idle and sweep.remove_idle(now)) or moved

    def call(self, work: Callable[[], object], about: HandOver | Check, now: datetime) -> None:
        timeout = conf.queue(about.queue).attempt_timeout
        if self.crew is not None:
            self.crew.submit(partial(_driven, self.wakeup.set, work), timeout, about)
            return
        call = Call(work, timeout, about)
        try:
            call.result = work()
        except Exception as error:
            call.error = error
        self.record(call, now)

    def collect(self, now: datetime) -> bool:
        """Record what came of calls, and what could not be written before. One that fails stops no other."""
        held, self.unmarked = self.unmarked, []
        for one in held:
            if one.until > now and not self.part("outcome", partial(one.write, now)):
                self.unmarked.append(one)
        ended = self.crew.collect() if self.crew else []
        fresh = [call for call in ended if call.error is None and _is_fresh(call.about)]
        for calls in _by_queue(fresh):
            if self.part("outcomes", partial(self.record_together, calls, now)):
                ended = [call for call in ended if call not in calls]
        for call in ended:
            self.part("outcome", partial(self.record, call, now))
        return bool(fresh or ended)

    def record_together(self, calls: Sequence[Call], now: datetime) -> bool:
        """Mark what several calls of a queue have handed over in one transaction."""
        self.mark(
            partial(_succeeded, reduce(HandOver.with_items_of, (call.about for call in calls))), calls[0].about, now
        )
        return True

    def record(self, call: Call, now: datetime) -> None:
        about = call.about
        if isinstance(about, Check):
            if call.error is None:
                admission.release_finished(about.queue, call.result)
            else:
                logger.error(
                    "queue %s: finished() failed for %d item(s)",
                    about.queue,
                    len(about.rows),
                    exc_info=call.error,
                )
        elif call.error is not None:
            self.mark(partial(_failed, about, call.error), about, now)
        elif call.result:
            self.mark(partial(_succeeded, about), about, now)
        else:
            admission.release_finished(about.queue, about.attempts)

    def mark(self, write: Callable[[datetime], bool], about: HandOver, now: datetime) -> None:
        if not write(now):
            self.unmarked.append(_Unmarked(write, now + conf.queue(about.queue).attempt_timeout))

    def compare_rules(self, now: datetime) -> bool:
        """Limits in the settings may have changed since the last process looked: then look at all that waits."""
        digest = limits.digest()
        stored = Driver.objects.filter(pk=1).values_list("rules_digest", flat=True).first()
        if stored != digest:
            _store_rules(digest)
            semaphores.nudge_all_waiting(now)
        self.knows_rules = True
        return False


def _connect_anew() -> None:
    """A session may be of no use any more without being broken: its server has become one that only reads."""
    for connection in connections.all(initialized_only=True):
        drop_if_broken(connection)
        if not connection.in_atomic_block:
            close(connection)


def _is_fresh(about: object) -> bool:
    return isinstance(about, HandOver) and not about.is_alone


def _by_queue(calls: Sequence[Call]) -> list[list[Call]]:
    return [[call for call in calls if call.about.queue == queue] for queue in {call.about.queue for call in calls}]


def _driven(wake: Callable[[], None], work: Callable[[], object]) -> object:
    with driven_by(wake):
        return work()


def _succeeded(batch: HandOver, now: datetime) -> bool:
    return admission.succeeded(batch, now=now)


def _failed(batch: HandOver, error: BaseException, now: datetime) -> bool:
    return admission.failed(batch, error, now=now)


def _store_rules(digest: str) -> None:
    # In transactions of their own: InnoDB's insert-ignore keeps a shared lock on the row that it finds, and two
    # sessions that go on to write this row deadlock, or one of them with a wake-up's mark.
    Driver.objects.bulk_create([Driver(pk=1)], ignore_conflicts=True)
    Driver.objects.filter(pk=1).update(rules_digest=digest)


_processes: dict[int, Work] = {}


def _process() -> Work:
    """This process's work. A forked child starts anew: its parent's threads are not there."""
    pid = os.getpid()
    if pid not in _processes:
        _processes.clear()
        wakeup = Wakeup()
        _processes[pid] = Work(Crew(conf.settings().driver.threads, on_end=wakeup.set), wakeup)
    return _processes[pid]
