"""Conversations that teach the protocol, each in a file: a command, and below `----` what the world prints.

    one-1: enqueue mail red/i1
    ----
    one-1: enqueue mail red/i1 -> stored i1

`pytest tests/scenarios --rewrite` writes the files anew. Commit the difference only if you can explain it. After the
last command everything is healed, and all must run, end and leave nothing behind; nothing of it is printed.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from django_semq import queues
from django_semq.models import Grant, IssuedGrant, Nudge
from tests.sim.invariants import read
from tests.sim.peer import Peer
from tests.sim.world import Node, Transaction, World

FILES = sorted(Path(__file__).parent.glob("*.txt"))
HOW = {"": Transaction.OWN, "in-transaction": Transaction.CALLERS, "rolled-back": Transaction.ROLLED_BACK}
HOOK = r"(after its commit|never comes to):? \S+"
"""With the name of the function, which says nothing to a reader."""

pytestmark = pytest.mark.usefixtures("sim")


class Stage:
    """A world and the commands that a scenario may give to it."""

    def __init__(self, world: World) -> None:
        self.world = world

    def do(self, line: str) -> list[str]:
        """Carry out one command; what the world notes meanwhile, without times, numbers of steps and names of hooks."""
        before = len(self.world.trace)
        actors = {actor.name: actor for actor in (*self.world.nodes, *self.world.peers)}
        name, _colon, words = line.partition(": ")
        if name not in actors:
            words = line
        command, *arguments = shlex.split(words)
        printed = getattr(self, command.replace("-", "_"))(actors.get(name), *arguments)
        notes = [re.sub(HOOK, r"\1", note[14:]) for note in self.world.trace[before:]]
        return [note for note, last in zip(notes, ["", *notes], strict=False) if note != last] + list(printed or ())

    # ------------------------------------------------------------------------------------------------ a node

    def enqueue(self, node: Node, queue: str, *places: str) -> None:
        """`enqueue mail red/i1 red/x/i2 [in-transaction | rolled-back]`"""
        how = HOW[places[-1] if places[-1] in HOW else ""]
        parts = [place.split("/") for place in places if place not in HOW]
        wanted = [(key, "/".join(group), uid) for key, *group, uid in parts]
        self.world.enqueue(node, queue, wanted, how=how)

    def cancel(self, node: Node, queue: str, uid: str) -> None:
        self.world.cancel(node, queue, uid)

    def release(self, node: Node, queue: str, uid: str) -> None:
        """The work of an item ends, and its permit is given back."""
        row = self.world.watcher.row_of(node.alias, queue, uid)
        if row in self.world.application.running:
            self.world.end(row)
        self.world.release(node, queue, uid)

    def tick(self, node: Node) -> None:
        self.world.tick(node)

    def hooks(self, node: Node) -> None:
        """The node comes to what follows its commits, and to what follows from that."""
        while hooks := [hook for hook in self.world.hooks if hook.node is node]:
            self.world.deliver(hooks[0])

    def lose_hooks(self, node: Node) -> None:
        for hook in [hook for hook in self.world.hooks if hook.node is node]:
            self.world.lose(hook)

    def crash_at(self, who: None, *point: str) -> None:
        """The next node that comes to this point dies there."""
        self.world.faults.next_crash = " ".join(point)

    def meanwhile(self, who: None, *words: str) -> None:
        """What others do while the next node that has keys still has them; commands with `;` between."""

        def others() -> None:
            self.world.faults.likely = {}
            for line in " ".join(words).split("; "):
                self.do(line)

        self.world.faults.likely = {"keep": 1.0}
        self.world.others = others

    def set_limit(self, node: Node, key: str, limit: str) -> None:
        self.world.operate(node, "set_limit", key, None if limit == "none" else int(limit))

    def set_ceiling(self, node: Node, key: str, group: str, ceiling: str) -> None:
        self.world.operate(node, "set_ceiling", key, group, None if ceiling == "none" else int(ceiling))

    def pause(self, node: Node, key: str) -> None:
        self.world.operate(node, "pause", key)

    def resume(self, node: Node, key: str) -> None:
        self.world.operate(node, "resume", key)

    # ------------------------------------------------------------------------------------------------ a peer

    def want(self, peer: Peer, *places: str) -> None:
        for place in places:
            key, _slash, group = place.partition("/")
            self.world.want(peer, key, group)

    def request(self, peer: Peer, key: str) -> None:
        self.world.send(peer, "request", key)

    def sync(self, peer: Peer, key: str) -> None:
        self.world.send(peer, "sync", key)

    def end(self, peer: Peer, number: str) -> None:
        (wish,) = [wish for wish in peer.running if wish.number == int(number)]
        self.world.end_wish(peer, wish)

    # -------------------------------------------------------------------------------------------- the wire, time

    def deliver(self, who: None, position: str = "1", copy: str = "") -> None:
        """Bring the letter at this position of the wire to where it goes; `deliver 1 copy` leaves a copy there."""
        self.world.carry(self.world.wire.letters[int(position) - 1], keep=bool(copy))

    def drop(self, who: None, position: str = "1") -> None:
        self.world.drop(self.world.wire.letters[int(position) - 1])

    def pass_time(self, who: None, seconds: str) -> None:
        self.world.pass_time(float(seconds))

    # ------------------------------------------------------------------------------------------------ a look

    def show(self, node: Node, what: str, *names: str) -> Iterator[str]:
        """`show status mail i1`, `show running`, `show nudges`, `show issued`, `show wire`"""
        return getattr(self, f"show_{what}")(node, *names)

    def show_status(self, node: Node, queue: str, *uids: str) -> Iterator[str]:
        for uid in uids:
            status = self.world.on(node.alias, lambda uid=uid: queues[queue].status(uid))
            yield (
                f"{uid} {status.state}{' ' + status.blocked if status.blocked else ''}" if status else f"{uid} is gone"
            )

    def show_running(self, node: Node | None) -> Iterator[str]:
        running = [item.id for item in self.world.application.running.values()]
        running += [f"{peer.name} {wish.number}" for peer in self.world.peers for wish in peer.running]
        yield f"running: {', '.join(running) or 'nothing'}"

    def show_nudges(self, node: Node) -> Iterator[str]:
        for queue, key, queued, returned in read(node.alias, Nudge, "queue", "key", "queued_delta", "returned"):
            yield f"nudge {queue} {key}: queued {queued:+d}, returned {returned}"
        yield "no other nudges"

    def show_grants(self, node: Node) -> Iterator[str]:
        for permits, released in read(node.alias, Grant, "permits", "released"):
            yield f"grant: {permits} permits, {released} released"
        yield "no other grants"

    def show_issued(self, node: Node) -> Iterator[str]:
        columns = ("permits", "claimed", "released", "clamped")
        for permits, claimed, released, clamped in read(node.alias, IssuedGrant, *columns):
            window = "clamped" if clamped else "open"
            yield f"issued: {permits} permits, {claimed} claimed, {released} released, {window}"
        yield "nothing else is issued"

    def show_wire(self, who: None) -> Iterator[str]:
        for position, letter in enumerate(self.world.wire.letters, 1):
            yield f"{position}: {letter}"


def played(text: str) -> str:
    """The scenario's text, with what the world prints now below each command."""
    lines = []
    with World() as world:
        stage = Stage(world)
        for part in text.split("\n\n"):
            command, mark, _printed = part.partition("\n----")
            if not mark:
                lines.append(part.rstrip("\n"))
                continue
            printed = [line for one in command.splitlines() if not one.startswith("#") for line in stage.do(one)]
            lines.append("\n".join([command, "----", *printed]))
        world.heal()
        world.settle()
    return "\n\n".join(lines) + "\n"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_scenario(file, pytestconfig):
    text = file.read_text()
    now = played(text)
    if pytestconfig.getoption("--rewrite", default=False):
        file.write_text(now)
    assert now == file.read_text()
