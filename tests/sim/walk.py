"""A seed's history: which step comes next, by whom and with what. The same seed takes the same way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.sim.application import GROUPS, KEYS, SEMQ
from tests.sim.faults import Faults
from tests.sim.projects import ALIASES, ONE
from tests.sim.wire import Letter
from tests.sim.world import NOON, Node, Transaction, World

QUEUES = tuple(SEMQ["QUEUES"])
ITEMS = 25
"""Of a project at once: with more of them the steps meet too seldom."""


class Walk:
    """Chooses steps for a world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rng = world.faults.rng
        self.keys = self.rng.choice((KEYS, KEYS, ("red",), ("blue",), ("green",)))
        self.groups = self.rng.choice((GROUPS, ("",), ("", "x")))
        peers = self.rng.choice((0.1, 1, 10))
        self.weights = {
            step: weight * self.rng.choice((step in ALWAYS, 1, 1, 2)) * (peers if step in PEERS else 1)
            for step, weight in STEPS.items()
        }
        if peers > 1:  # Else the permits are with items that nobody comes to end.
            self.weights[Walk.enqueue] /= 4
        for start, step in LEADS_TO.items():
            if world.faults.focus.startswith(start):
                self.weights[step] += sum(self.weights.values()) / 10
        self.weights[Walk.pass_time] = sum(self.weights.values()) / 20
        for peer in world.peers:
            peer.is_eager = self.rng.random() < 0.5
        world.others = self.others

    def step(self) -> None:
        """One step of anybody who is free."""
        (step,) = self.rng.choices(list(self.weights), list(self.weights.values()))
        node = self.rng.choice([node for node in self.world.nodes if node not in self.world.acting])
        step(self, node)

    def others(self) -> None:
        """What happens while a node has keys, or waits for its application: often it is about the same."""
        for _step in range(self.rng.choice((1, 1, 2, 4))):
            if self.rng.random() < 0.5:
                self.step()
            elif self.world.keys_held:
                self.try_taken_key()
            else:
                self.tick(self.rng.choice(self.world.free_nodes(self.world.acting[-1].alias)))

    def try_taken_key(self) -> None:
        """A caller finds its key taken, and leaves it to the owner."""
        alias, queue, key = self.rng.choice(sorted(self.world.keys_held))
        for node in self.world.free_nodes(alias):
            self.world.enqueue(node, queue, [(key, self.rng.choice(self.groups), self.new_id())])
            for hook in [hook for hook in self.world.hooks if hook.node is node][-1:]:
                self.world.deliver(hook)

    # ------------------------------------------------------------------------------------------- what may happen

    def enqueue(self, node: Node) -> None:
        accepted = self.world.watcher.accepted[node.alias]
        if len(accepted) >= ITEMS:
            return
        wanted = [(*self.place(), self.new_id()) for _item in range(self.rng.choice((1, 1, 1, 2, 5)))]
        if accepted and self.rng.random() < 0.3:
            _queue, uid = self.rng.choice(sorted(accepted))
            wanted.insert(self.rng.randint(0, len(wanted)), (*self.place(), uid))
        self.world.enqueue(node, self.rng.choice(QUEUES), wanted, how=self.transaction())

    def cancel(self, node: Node) -> None:
        if accepted := sorted(self.world.watcher.accepted[node.alias]):
            self.world.cancel(node, *self.rng.choice(accepted), how=self.transaction())

    def end(self, node: Node) -> None:
        if running := sorted(row for row in self.world.application.running if row[0] == node.alias):
            self.world.end(self.rng.choice(running))

    def release(self, node: Node) -> None:
        """By whoever knows that it has ended, perhaps for the second time."""
        watcher = self.world.watcher
        ended = [
            seen for seen in watcher.admitted(node.alias) if (node.alias, seen.row) in self.world.application.ended
        ]
        if ended:
            seen = self.rng.choice(ended)
            done = self.world.release(node, seen.queue, seen.uid, how=self.transaction())
            if done == [seen.uid] and self.rng.random() < 0.3:
                again = self.world.release(node, seen.queue, seen.uid)
                if again == [seen.uid]:
                    self.world.broken("I8", f"{seen.uid} was released twice")

    def advance(self, node: Node) -> None:
        self.world.advance(node)

    def tick(self, node: Node) -> None:
        self.world.tick(node)

    def deliver(self, node: Node) -> None:
        hooks = [hook for hook in self.world.hooks if hook.node not in self.world.acting]
        if hooks:
            hook = self.rng.choice(hooks)
            if self.world.faults.happens("hook lost"):
                self.world.lose(hook)
            else:
                self.world.deliver(hook)

    def pass_time(self, node: Node) -> None:
        seconds = self.rng.choice((0.1, 1, 5, 35, 65, 400))
        self.world.pass_time(seconds)
        self.world.note("-", f"{seconds:g} s pass")

    def pass_day(self, node: Node) -> None:
        self.world.pass_time(90_000)
        self.world.note("-", "a day passes")
        self.world.tick(node)

    def move_clock(self, node: Node) -> None:
        """A clock is set, by up to five minutes, forward or back; or begins to go wrong."""
        node.ahead = self.rng.uniform(-300, 300)
        node.rate = self.rng.choice((0.999, 1, 1, 1.001))
        self.world.note(node, f"its clock is {node.ahead:.0f} s ahead and goes {node.rate:g} times as fast")

    def limit(self, node: Node) -> None:
        key, group = self.rng.choice(self.keys), self.rng.choice(self.groups)
        how = self.transaction()
        what = self.rng.choice(("set_limit", "set_ceiling", "reset_limit", "pause", "resume", "resume", "refresh"))
        if what == "set_limit":
            self.world.operate(node, what, key, self.rng.choice((0, 1, 2, 4, 4, None)), how=how)
        elif what == "set_ceiling":
            self.world.operate(node, what, key, group, self.rng.choice((0, 1, 2, None)), how=how)
        elif what == "refresh":
            self.world.operate(node, what, self.rng.choice((key, None)), how=how)
        else:
            self.world.operate(node, what, key, self.rng.choice((group, None)), how=how)

    def hold(self, node: Node) -> None:
        """A caller's transaction has some items for a while; what it had is let go."""
        world = self.world
        world.rows_held = {at for at in world.rows_held if at[0] != node.alias}
        if self.rng.random() < 0.5:
            rows = sorted(world.watcher.items[node.alias])
            world.rows_held |= {(node.alias, row) for row in self.rng.sample(rows, min(len(rows), 2))}
        held = sorted(
            world.watcher.items[at].get(row).uid for at, row in world.rows_held if row in world.watcher.items[at]
        )
        world.note("-", f"callers' transactions have {', '.join(held) or 'nothing'}")

    def spoil(self, node: Node) -> None:
        self.world.spoil_key(node, self.rng.choice(self.keys))

    def spoil_item(self, node: Node) -> None:
        world = self.world
        rows = [row for row in world.watcher.items[node.alias] if (node.alias, row) not in world.application.running]
        if rows:
            world.spoil_item(node, self.rng.choice(rows))

    def mend(self, node: Node) -> None:
        self.world.mend(node, self.rng.choice(self.keys))

    def deploy(self, node: Node) -> None:
        self.world.deploy(node)

    # ----------------------------------------------------------------------------------------------------- peers

    def want(self, node: Node) -> None:
        peer = self.rng.choice(self.world.peers)
        place = self.place()
        for _wish in range(self.rng.choice((1, 2, 3)) if len(peer.waiting) < 6 else 0):
            self.world.want(peer, *place)

    def claim(self, node: Node) -> None:
        peer = self.rng.choice(self.world.peers)
        self.world.claim(peer, self.rng.choice(peer.open_keys or self.keys))

    def end_wish(self, node: Node) -> None:
        peer = self.rng.choice(self.world.peers)
        if peer.running:
            self.world.end_wish(peer, self.rng.choice(peer.running))

    def send(self, node: Node) -> None:
        self.message()

    def talk(self, node: Node) -> None:
        """A message that goes there and back at once, if nothing happens to it."""
        if self.world.free_nodes(ONE):
            self.bring(self.message())

    def message(self) -> Letter:
        peer = self.rng.choice(self.world.peers)
        key = self.rng.choice(peer.open_keys or self.keys)
        waits = any(wish.key == key for wish in peer.waiting)
        return self.world.send(peer, self.rng.choice(("request", "request" if waits else "sync", "sync")), key)

    def carry(self, node: Node) -> None:
        """A letter that is on its way, perhaps for long, comes to where it goes."""
        if self.world.wire.letters and self.world.free_nodes(ONE):
            self.bring(self.rng.choice(self.world.wire.letters))

    def bring(self, letter: Letter) -> None:
        world = self.world
        if world.faults.happens("lose") or len(world.wire.letters) > 20:
            world.drop(letter)
        elif world.faults.happens("double") and letter.answer is None and letter.is_sync:
            world.carry_twice(letter)
        else:
            reply = world.carry(letter, keep=world.faults.happens("double"))
            if reply is not None and self.rng.random() < 0.7:
                self.bring(reply)

    def evict(self, node: Node) -> None:
        peer = self.rng.choice(self.world.peers)
        if self.world.free_nodes(ONE):
            self.world.evict(peer, self.rng.choice((None, None, NOON)))

    # --------------------------------------------------------------------------------------------------- chances

    def place(self) -> tuple[str, str]:
        return self.rng.choice(self.keys), self.rng.choice(self.groups)

    def new_id(self) -> str:
        self.world.ids += 1
        return f"i{self.world.ids}"

    def transaction(self) -> Transaction:
        return self.rng.choice((Transaction.OWN, Transaction.OWN, Transaction.CALLERS, Transaction.ROLLED_BACK))


STEPS: dict[Callable[[Walk, Node], Any], float] = {
    Walk.enqueue: 12,
    Walk.cancel: 2,
    Walk.end: 10,
    Walk.release: 10,
    Walk.advance: 6,
    Walk.tick: 6,
    Walk.deliver: 20,
    Walk.pass_time: 4,
    Walk.pass_day: 0.5,
    Walk.move_clock: 0.5,
    Walk.limit: 3,
    Walk.hold: 1,
    Walk.spoil: 0.5,
    Walk.spoil_item: 0.3,
    Walk.mend: 1,
    Walk.deploy: 0.5,
    Walk.want: 6,
    Walk.claim: 3,
    Walk.end_wish: 6,
    Walk.send: 4,
    Walk.talk: 8,
    Walk.carry: 12,
    Walk.evict: 0.5,
}
"""Steps and how often they come; each history draws half, full or double weight of it, or none."""
ALWAYS = {Walk.enqueue, Walk.end, Walk.release, Walk.tick, Walk.deliver, Walk.talk, Walk.want, Walk.pass_time}
PEERS = {Walk.want, Walk.claim, Walk.end_wish, Walk.send, Walk.talk, Walk.carry}
"""Their share is drawn besides: of some histories they are most."""

LEADS_TO = {
    "holder.sweep": Walk.pass_day,
    "holder.semaphores": Walk.limit,
    "invariants": Walk.mend,
    "queue.pump.with_keys": Walk.mend,
    "queue.pump._set_aside": Walk.spoil,
    "message": Walk.talk,
    "holder: ": Walk.talk,
}
"""Points that few histories come to, with the step that leads there: it comes oftener where the point is in focus."""


def history(seed: int, steps: int) -> World:
    """Play a seed's history to its end, all well. Raises `Broken`, with the trace in the notes."""
    return play(World(Faults.drawn(seed)), steps)


def play(world: World, steps: int, opening: Callable[[World], None] | None = None) -> World:
    """Play a history in this world. It may open with steps that somebody chose, where nothing is left to chance."""
    with world:
        world.trace.append(str(world.faults))
        try:
            if opening is not None:
                open_with(opening, world)
            walk = Walk(world)
            while world.steps < steps:
                walk.step()
            world.heal()
            world.settle()
        except BaseException as error:
            error.add_note("\n".join([world.trace[0], *world.trace[-60:]]))
            raise
    return world


def open_with(opening: Callable[[World], None], world: World) -> None:
    drawn, world.faults = world.faults, Faults(world.faults.rng)
    opening(world)
    if world.faults.next_crash is not None:
        raise LookupError(f"nobody came to {world.faults.next_crash!r}; write this opening anew")
    for alias in ALIASES:
        world.watcher.recount(alias)  # Before an operator of the walk mends what is wrong.
    world.faults = drawn
