"""Beginnings of histories: each brings the world to where one rule of the protocol decides, and lets it decide.

They are made of steps and of faults that are named, so they end the same however many statements the library makes.
"""

from __future__ import annotations

from tests.sim.application import MAIL
from tests.sim.peer import Peer
from tests.sim.world import Node, World

RED = "red"
"""The key of them all. Its limit is 4, and that of its group x is 2."""
LONG = 400
"""Seconds: longer than a grant may be open, and than an attempt may take."""


# -------------------------------------------------------------------------------------------------- a foreign client


def a_report_is_repeated(world: World) -> None:
    """The holder dies before its reply: the peer says once more what the holder knows."""
    peer = peer_with(world, wanted=2, claimed=2)
    world.end_wish(peer, peer.running[0])
    world.faults.next_crash = "message: after"
    world.carry(world.send(peer, "sync", RED))
    talk(world, peer, "sync")


def a_report_is_overtaken(world: World) -> None:
    peer = peer_with(world, wanted=2, claimed=1)
    old = world.send(peer, "sync", RED)
    world.claim(peer, RED)
    world.carry(world.send(peer, "sync", RED))
    world.carry(old)


def a_claim_comes_after_the_clamp(world: World) -> None:
    """The window has ended, and the reply that says so is lost."""
    peer = peer_with(world, wanted=2, claimed=1)
    world.pass_time(LONG)
    world.faults.next_crash = "message: after"
    world.carry(world.send(peer, "sync", RED))
    world.claim(peer, RED)
    talk(world, peer, "sync")


def a_claim_comes_after_the_window(world: World) -> None:
    peer = peer_with(world, wanted=1, claimed=0)
    world.pass_time(LONG)
    world.claim(peer, RED)
    talk(world, peer, "sync")


def a_window_ends(world: World) -> None:
    """Of the two permits one is in use."""
    peer = peer_with(world, wanted=2, claimed=1)
    world.pass_time(LONG)
    talk(world, peer, "sync")


def an_item_ends_while_its_grant_is_clamped(world: World) -> None:
    """The reply that makes the grant final is to a report from before the item's end."""
    peer = peer_with(world, wanted=1, claimed=1)
    world.pass_time(LONG)
    world.send(peer, "sync", RED)
    world.end_wish(peer, peer.running[0])
    world.carry_all()


def more_is_wanted_than_the_limit(world: World) -> None:
    peer_with(world, wanted=5, claimed=0)


def peer_with(world: World, *, wanted: int, claimed: int) -> Peer:
    """A peer that was granted what it wants, and runs what it has claimed of it."""
    peer = world.peers[0]
    peer.is_eager = False
    for _wish in range(wanted):
        world.want(peer, RED, "")
    talk(world, peer, "request")
    for _wish in range(claimed):
        world.claim(peer, RED)
    talk(world, peer, "sync")
    return peer


def talk(world: World, peer: Peer, kind: str) -> None:
    world.send(peer, kind, RED)
    world.carry_all()


# ------------------------------------------------------------------------------------------------------ the library


def an_item_is_done(world: World) -> None:
    node = world.nodes[0]
    world.enqueue(node, MAIL, [(RED, "", "done")])
    world.tick(node)
    (row,) = world.application.running
    world.end(row)
    world.release(node, MAIL, "done")
    world.tick(node)


def more_waits_than_the_ceiling(world: World) -> None:
    node = world.nodes[0]
    world.enqueue(node, MAIL, [(RED, "x", f"x{number}") for number in range(3)])
    world.tick(node)


def many_enqueue_and_nobody_pumps(world: World) -> None:
    """There are more nudges than a pump takes at a time, where its bounds are small."""
    node = world.nodes[0]
    for number in range(5):
        world.enqueue(node, MAIL, [(RED, "", f"many{number}")])
    world.tick(node)


def a_caller_finds_its_key_taken(world: World) -> None:
    """By a caller whose own pump is as good as over."""
    owner, other = world.nodes[:2]

    def others() -> None:
        world.others = None
        world.enqueue(other, MAIL, [(RED, "", "second")])
        follow_commits(world, other)

    world.enqueue(owner, MAIL, [(RED, "", "first")])
    world.faults.likely = {"keep": 1}
    world.others = others
    follow_commits(world, owner)


def an_attempt_is_overtaken(world: World) -> None:
    """admit() takes so long that another node tries the item again, and fails."""
    slow, other = world.nodes[:2]

    def others() -> None:
        world.others = None
        world.pass_time(LONG)
        world.tick(other)

    world.enqueue(slow, MAIL, [(RED, "", "tried")])
    world.faults.likely = {"admit is slow": 1, "admit fails meanwhile": 1}
    world.others = others
    world.tick(slow)


def follow_commits(world: World, node: Node) -> None:
    for hook in [hook for hook in world.hooks if hook.node is node]:
        world.deliver(hook)
