"""A number of histories, each from its seed: every invariant holds, and every place where a process may die is seen.

What runs here in a minute, `python -m tests.sim.soak` runs for as long as one likes.
"""

import pytest

from tests.sim import boundaries
from tests.sim.faults import all_points
from tests.sim.soak import soak
from tests.sim.walk import history

STEPS = 100
FEW = range(101, 104)
"""For the databases where each statement is a round trip."""

pytestmark = pytest.mark.usefixtures("sim")


@pytest.mark.databases("sqlite")
def test_the_promises_hold_in_every_history_and_every_point_of_death_is_met(capsys):
    points = all_points()
    done = soak(range(len(points)), STEPS)
    for turn in range(1, 9):  # A history in which its point did not come: the next seeds that have it in focus.
        missed = [number for number, point in enumerate(points) if point not in done.crashed]
        soak([number + turn * len(points) for number in missed], STEPS, done)

    with capsys.disabled():
        print(f"\n{done}")
    assert [point for point in points if point not in done.crossed] == []
    assert [point for point in points if point not in done.crashed] == []
    assert done.left > 0


@pytest.mark.databases("postgres", "mariadb")
def test_the_promises_hold_on_this_database_too():
    assert soak(FEW, STEPS).seeds == len(FEW)


def test_a_seed_gives_the_same_history_each_time():
    seed = 7
    print(f"seed {seed}")

    assert history(seed, STEPS).trace == history(seed, STEPS).trace


def test_what_is_out_of_reach_is_still_there():
    known = {*boundaries.places(), *(place.rpartition(".")[0] for place in boundaries.places())}
    assert [start for start in boundaries.OUT_OF_REACH if not any(place.startswith(start) for place in known)] == []
