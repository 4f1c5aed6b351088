"""Histories that once broke an invariant, each as short as it could be made."""

import pytest

from tests.sim.projects import ONE
from tests.sim.world import World

pytestmark = pytest.mark.usefixtures("sim")


@pytest.fixture
def world():
    """All must end well, and leave nothing behind."""
    with World() as world:
        yield world
        world.heal()
        world.settle()


def test_an_operators_first_verb_that_dies_half_way_leaves_no_row_for_good(world):
    world.faults.next_crash = "holder.semaphores._change: after"

    world.operate(world.nodes[0], "resume", "red")


def test_a_repair_that_dies_half_way_leaves_no_key_for_good(world):
    world.faults.next_crash = "invariants.repair: after"

    world.mend(world.nodes[0], "red")


def test_a_pause_that_takes_back_what_a_lost_reply_gave_leaves_no_row_for_good(world):
    (peer, *_), node = world.peers, world.nodes[0]
    world.want(peer, "red", "")
    world.drop(world.carry(world.send(peer, "request", "red")))

    world.operate(node, "pause", "red")

    assert world.watcher.used[ONE, "red", None] == 0


def test_a_key_can_be_paused_while_an_open_grant_of_it_is_all_back(world):
    (peer, *_), node = world.peers, world.nodes[0]
    world.want(peer, "red", "")
    for kind in ("request", "sync"):
        world.carry(world.carry(world.send(peer, kind, "red")))
    world.end_wish(peer, peer.running[0])
    world.carry(world.carry(world.send(peer, "sync", "red")))

    assert world.operate(node, "pause", "red") is None
