"""The application of the tests that break things: processes by role, and what they run on."""

import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from itertools import count

from django_semq.models import Item, State
from tests.concurrency import KILL_SECONDS, QUIET, STARTS
from tests.concurrency.observer import Event, exceeded
from tests.concurrency.states import leftovers, open_transactions, wait_until
from tests.processes import Child, kill9

LIMIT = 3
KEYS = [[f"key-{number}", "", 1] for number in range(4)]
POLL_INTERVAL = 0.2
ATTEMPT_TIMEOUT = 2
FINISHED_CHECK = 1
SETTINGS = {
    "QUEUES": {
        "default": {
            "ADMIT": "tests.concurrency.work.admit",
            "FINISHED": "tests.concurrency.work.finished",
            "FINISHED_CHECK": FINISHED_CHECK,
            "ATTEMPT_TIMEOUT": ATTEMPT_TIMEOUT,
        }
    },
    "HOLDER": {"DEFAULT_LIMIT": LIMIT},
    "DRIVER": QUIET | {"POLL_INTERVAL": POLL_INTERVAL},
}
SLOWEST = 2
"""Items a second that are done at least, and"""
SPARE = 10
"""seconds, on a machine that does other things too."""
PATIENCE = 30
ROUNDS = max(1, min(5, KILL_SECONDS // 12))
"""Each way to kill comes so often at least, however slow the machine: a minute is for five."""

OPEN_PUMP = [
    "DELETE.*semq_nudge",
    "INSERT INTO.*semq_issuedgrant",
    "INSERT INTO.*semq_semaphore.*UPDATE",
    "INSERT INTO.*semq_grant",
    "UPDATE.*semq_item.*admitted_at",
    "INSERT INTO.*semq_keygroup",
]
"""Statements that only the pump's transaction has, from its beginning to its end."""

WORKER = "tests.concurrency.worker"
TASK_CALLER = "tests.concurrency.task_caller"
EVER = 10**6
READY = {"driver": "driving", "cluster": "running"}
"""What they print when they are, other than "ready"."""


class Crowd:
    """Processes by role, each replaced when it is killed."""

    def __init__(self, spawn: Callable[..., Child], seed: int) -> None:
        self.spawn = spawn
        self.random = random.Random(seed)
        self.alive: dict[str, list[Child]] = defaultdict(list)
        self.kills: Counter[str] = Counter()
        self.started = 0
        print(f"\nseed {seed}")

    def start(self, role: str, **how: object) -> Child:
        child = self.launch(role, **how)
        self.let_go(role, child)
        return child

    def launch(self, role: str, **how: object) -> Child:
        self.started += 1
        name = f"{role}{self.started}"
        arguments = {
            "caller": (WORKER, name, EVER, 0, 0.6, 0),
            "worker": (WORKER, name, 0, 3, 0, 0.1),
            "both": (WORKER, name, EVER, 3, 0.6, 0.1),
            "task caller": (TASK_CALLER, name, 1),
            "driver": ("django", "semq_run"),
            "cluster": ("django", "qcluster"),
        }[role]
        return self.spawn(*arguments, **how)

    def let_go(self, role: str, child: Child) -> None:
        child.wait_for_line(READY.get(role, "ready"), STARTS)
        child.tell("go")

    def add(self, roles: dict[str, int]) -> None:
        """That many of each, all started at once."""
        launched = [(role, self.launch(role)) for role, number in roles.items() for _one in range(number)]
        for role, child in launched:
            self.let_go(role, child)
            self.alive[role].append(child)

    def kill_for(self, seconds: float, *ways: Callable[[], None]) -> None:
        """In all these ways, in a random order, again and again: for so long, and some rounds at least."""
        began = time.monotonic()
        for number, kill in self.rounds(ways):
            if number > ROUNDS and time.monotonic() - began >= seconds:
                break
            kill()
        print(f"{self.kills.total()} kills in {time.monotonic() - began:.0f} s: {dict(self.kills)}")

    def rounds(self, ways: tuple[Callable[[], None], ...]) -> Iterator[tuple[int, Callable[[], None]]]:
        for number in count(1):
            for kill in self.random.sample(ways, len(ways)):
                yield number, kill

    def kill_one(self, role: str, kill: Callable[[Child], None] = kill9) -> None:
        """At a random time, wherever it is."""
        time.sleep(self.random.uniform(0, 0.5))
        victim = self.alive[role].pop(self.random.randrange(len(self.alive[role])))
        self.log(role)
        kill(victim)
        self.add({role: 1})

    def kill_in_an_open_pump(self, kill: Callable[[Child], None]) -> None:
        fault = {"pattern": self.random.choice(OPEN_PUMP), "nth": self.random.randint(1, 3)}
        victim = self.start("both", faults={"stands_still": fault})
        victim.wait_for_line("stands still", PATIENCE)
        self.log("pump", f"before {fault['pattern']}")
        kill(victim)

    def kill_in_admit(self) -> None:
        begins = self.random.random() < 0.5
        victim = self.start("driver", faults={"hangs_in_admit": {"begins": begins}})
        victim.wait_for_line("runs admit", PATIENCE)
        self.log("admit()", f"at its {'end' if begins else 'beginning'}")
        kill9(victim)

    def stop(self, role: str) -> list[str]:
        """What they had to say, besides that they were ready."""
        children = self.alive.pop(role)
        for child in children:
            child.terminate() if role == "driver" else child.tell("stop")
        return [line for child in children for line in child.finish()[1:]]

    def log(self, what: str, where: str = "") -> None:
        """What is about to be killed, and the state of things at that moment."""
        self.kills[what] += 1
        queued, admitted = (Item.objects.filter(state=state).count() for state in (State.QUEUED, State.ADMITTED))
        print(
            f"kill {self.kills.total():3}: {f'{what} {where}':50} queued {queued:4}, admitted {admitted:3},"
            f" open transactions {open_transactions()}"
        )


def wait_for_the_end(bound: float = ATTEMPT_TIMEOUT + FINISHED_CHECK) -> None:
    """Everything is back, within what the library waits before it does a thing again and the time for the rest."""
    backlog = Item.objects.count()
    bound += POLL_INTERVAL + backlog / SLOWEST + SPARE
    took = wait_until(lambda: not Item.objects.exists() and not leftovers(), bound, "everything is back")
    print(f"the last {backlog} items were done after {took:.1f} s, the bound was {bound:.1f} s")


def over_the_limit(events: list[Event]) -> list[str]:
    return exceeded(events, lambda key: LIMIT, lambda key, group: None)
