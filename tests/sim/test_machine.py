"""Hypothesis chooses the steps, and finds the shortest history that breaks an invariant.

Here the faults are steps too: a crash at the next commit, a lost hook, a letter that is dropped or doubled.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from tests.sim.application import BULK, MAIL
from tests.sim.boundaries import AFTER, BEFORE
from tests.sim.world import Node, Transaction, World

keys = st.sampled_from(("red", "green"))
groups = st.sampled_from(("", "x"))
nodes = st.integers(0, 2)
queues = st.sampled_from((MAIL, BULK))
transactions = st.sampled_from(Transaction)
crashes = st.sampled_from((None, None, None, BEFORE, AFTER))
"""At the first commit that comes, if at all."""
positions = st.integers(0, 30)


class Machine(RuleBasedStateMachine):
    """The rules are the world's steps; the world checks its invariants after each."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.world.__enter__()

    def teardown(self) -> None:
        try:
            if not self.world.breach:
                self.world.heal()
                self.world.settle()
        finally:
            self.world.__exit__()

    def node(self, number: int) -> Node:
        return self.world.nodes[number]

    def some(self, rows: Any, position: int) -> Any:
        rows = sorted(rows)
        return rows[position % len(rows)] if rows else None

    @initialize()
    def begin(self) -> None:
        """A driver has seen the settings."""
        self.world.tick(self.node(0))

    @rule(number=nodes, queue=queues, key=keys, group=groups, count=st.integers(1, 3), how=transactions, crash=crashes)
    def enqueue(self, number, queue, key, group, count, how, crash):
        self.world.faults.next_crash = crash
        self.world.ids += count
        ids = [f"i{self.world.ids - one}" for one in range(count)]
        self.world.enqueue(self.node(number), queue, [(key, group, uid) for uid in ids], how=how)

    @rule(number=nodes, position=positions, how=transactions, crash=crashes)
    def cancel(self, number, position, how, crash):
        node = self.node(number)
        if at := self.some(self.world.watcher.accepted[node.alias], position):
            self.world.faults.next_crash = crash
            self.world.cancel(node, *at, how=how)

    @rule(position=positions)
    def end(self, position):
        if row := self.some(self.world.application.running, position):
            self.world.end(row)

    @rule(position=positions, how=transactions, crash=crashes)
    def release(self, position, how, crash):
        watcher = self.world.watcher
        admitted = {
            (node.alias, seen.row): (node, seen) for node in self.world.nodes for seen in watcher.admitted(node.alias)
        }
        if row := self.some(admitted.keys() & self.world.application.ended.keys(), position):
            node, seen = admitted[row]
            self.world.faults.next_crash = crash
            self.world.release(node, seen.queue, seen.uid, how=how)

    @rule(number=nodes, crash=crashes, once=st.booleans())
    def drive(self, number, crash, once):
        self.world.faults.next_crash = crash
        (self.world.advance if once else self.world.tick)(self.node(number))

    @precondition(lambda self: self.world.hooks)
    @rule(position=positions, is_lost=st.booleans(), crash=crashes)
    def hook(self, position, is_lost, crash):
        hook = self.world.hooks[position % len(self.world.hooks)]
        self.world.faults.next_crash = crash
        (self.world.lose if is_lost else self.world.deliver)(hook)

    @rule(seconds=st.sampled_from((1, 35, 65, 400)))
    def pass_time(self, seconds):
        self.world.pass_time(seconds)

    @rule(key=keys, limit=st.sampled_from((0, 1, 3, None)), crash=crashes)
    def set_limit(self, key, limit, crash):
        self.world.faults.next_crash = crash
        self.world.operate(self.node(0), "set_limit", key, limit)

    @rule(key=keys, group=st.sampled_from((None, "", "x")), what=st.sampled_from(("pause", "resume", "reset_limit")))
    def operate(self, key, group, what):
        self.world.operate(self.node(0), what, key, group)

    @rule(peer=st.integers(0, 1), key=keys, group=groups)
    def want(self, peer, key, group):
        self.world.want(self.world.peers[peer], key, group)

    @rule(peer=st.integers(0, 1), position=positions)
    def end_wish(self, peer, position):
        one = self.world.peers[peer]
        if wish := self.some(one.running, position):
            self.world.end_wish(one, wish)

    @rule(peer=st.integers(0, 1), kind=st.sampled_from(("request", "sync")), key=keys)
    def send(self, peer, kind, key):
        self.world.send(self.world.peers[peer], kind, key)

    @precondition(lambda self: self.world.wire.letters)
    @rule(position=positions, what=st.sampled_from(("bring", "bring", "double", "drop")), crash=crashes)
    def letter(self, position, what, crash):
        letter = self.world.wire.letters[position % len(self.world.wire.letters)]
        if what == "drop":
            self.world.drop(letter)
        else:
            self.world.faults.next_crash = crash
            self.world.carry(letter, keep=what == "double")


@pytest.mark.usefixtures("sim")
@pytest.mark.databases("sqlite")
def test_no_history_of_a_few_steps_breaks_a_promise():
    in_ci = bool(os.environ.get("CI"))
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=40,
            stateful_step_count=25,
            deadline=None,
            derandomize=in_ci,
            database=None,
            print_blob=True,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        ),
    )
