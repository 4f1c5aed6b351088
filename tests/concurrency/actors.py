"""The test's side of `actor.py`: giving orders, and letting one order fall into every place of another."""

import json
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

from django.db import connection

from tests.concurrency.states import sessions_that_wait_for_a_lock, wait_until
from tests.processes import Child

STUCK = 10
"""Seconds: whoever has neither ended nor waits for a lock by then is stuck."""
LOOK_EVERY = 0.002
"""Seconds: an order takes a few of these, and there are thousands of orders."""

Call = list
Arrange = Callable[[str], tuple[list[Call], list[Call]]]


class Actor:
    """A process of `actor.py`, and the number of the order it is at."""

    def __init__(self, child: Child) -> None:
        self.child = child
        self.number = 0
        self.heard = 0
        """Lines that it had printed before this order."""
        self.ended_inside = False
        """Whether its order fell into another's (see `meetings`) and had ended before that one went on."""

    def start(
        self,
        *calls: Call,
        stop: int | str | None = None,
        atomic: bool = False,
        holds: bool = False,
        undoes: bool = False,
    ) -> None:
        self.number += 1
        self.heard = len(self.child.lines)
        order = {
            "number": self.number,
            "calls": calls,
            "stop": stop,
            "atomic": atomic or holds or undoes,
            "holds": holds,
            "undoes": undoes,
        }
        self.child.tell(json.dumps(order))

    def step(self) -> str:
        """The first thing it says about this order: `stopped …`, `holds`, `done …` or `failed …`."""
        return self.child.wait_for_line(f"#{self.number} ", STUCK).partition(" ")[2]

    def go_on(self) -> None:
        self.child.tell("")

    def outcome(self) -> str | None:
        """`done …` or `failed …`, None until then."""
        for line in self.child.lines[self.heard :]:
            number, _, said = line.partition(" ")
            if number == f"#{self.number}" and said.startswith(("done", "failed")):
                return said
        return None

    def is_idle(self) -> bool:
        return self.outcome() is not None and self.child.poll() is None

    def ending(self, within: float = STUCK) -> tuple[str, Any]:
        """`done` and what its calls returned, of a single call what that one did; or `failed` and the error."""
        has_ended = lambda: self.outcome() or self.child.poll() is not None  # noqa: E731
        wait_until(has_ended, within, f"the end of order {self.number}, after {self.child.lines[-1:]}", LOOK_EVERY)
        assert self.outcome(), "\n".join(self.child.lines)
        what, _, text = self.outcome().partition(" ")
        said = json.loads(text)
        return what, said[0] if what == "done" and len(said) == 1 else said

    def results(self, within: float = STUCK) -> Any:
        """What its calls returned. Fails with the error if one failed."""
        what, said = self.ending(within)
        assert what == "done", said
        return said

    def do(self, *calls: Call, **how: bool) -> Any:
        self.start(*calls, **how)
        return self.results()


def meetings(
    first: Actor, second: Actor, arrange: Arrange, prefix: str = "", **how: bool
) -> Iterator[tuple[str, Any, Any]]:
    """Let the second order run at every statement of the first, each time with rows of their own.

    `arrange` gets a name for these rows and returns both orders. The second one runs until it has ended or waits
    for the first. On SQLite it can do nothing inside the first one's transaction, so there it just comes next.
    """
    for stop in count(1):
        name = f"{prefix}{stop}"
        one, other = arrange(name)
        first.start(*one, stop=stop, **how)
        step = first.step()
        if not step.startswith("stopped"):
            first.results()
            second.do(*other, **how)
            assert stop > 1, "it was never stopped"
            return
        second.start(*other, **how)
        if connection.vendor != "sqlite" or step.startswith("stopped outside"):
            wait_until(
                lambda: second.outcome() or sessions_that_wait_for_a_lock(),
                STUCK,
                f"{other} ended or waits for a lock, while {one} is {step}",
                LOOK_EVERY,
            )
        second.ended_inside = second.outcome() is not None
        first.go_on()
        yield name, first.results(), second.results()
