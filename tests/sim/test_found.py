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


def test_two_queues_whose_items_are_held_do_not_wake_each_other_for_ever(world):
    node = world.nodes[0]
    for queue, group, uid in [("mail", "", "m1"), ("bulk", "x", "b1"), ("bulk", "", "b2"), ("mail", "x", "m2")]:
        world.enqueue(node, queue, [("green", group, uid)])
        world.pass_time(1)
    world.rows_held = {
        (node.alias, row) for row, seen in world.watcher.items[node.alias].items() if seen.uid in ("m1", "b1")
    }
    world.tick(node)
    world.pass_time(40)

    world.tick(node)


def test_a_window_that_ends_on_a_key_of_which_nobody_speaks_is_taken_back(world):
    (peer, *_), node = world.peers, world.nodes[0]
    world.want(peer, "red", "")
    world.drop(world.carry(world.send(peer, "request", "red")))
    world.pass_time(60)

    world.tick(node)

    assert world.watcher.used[ONE, "red", None] == 0
