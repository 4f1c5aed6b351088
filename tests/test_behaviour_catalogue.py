"""The catalogue in behaviour.toml is complete, and what it names is there and runs."""

import subprocess
import sys

import pytest

from tests import behaviour

LABELS = [f"S{number:02}" for number in range(1, 193)]


def test_every_behaviour_is_listed_once_and_in_order():
    assert list(behaviour.read()) == LABELS


@pytest.mark.parametrize("label", LABELS)
def test_every_behaviour_has_tests_or_says_why_it_has_none(label):
    entry = behaviour.read()[label]
    assert entry["says"].endswith(".")
    assert set(entry) <= {"says", "tests", "instead", "later"}
    if "later" in entry:
        assert set(entry) == {"says", "later"}
    else:
        assert entry.get("tests") or entry.get("instead", "").endswith(".")
        assert len(set(entry.get("tests", []))) == len(entry.get("tests", []))


@pytest.mark.processes
def test_every_named_test_is_there_and_may_not_be_left_out():
    done = subprocess.run(
        [sys.executable, "-m", "tests.behaviour", "--collect-only", "-q"],
        cwd=behaviour.FOLDER.parent,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


CATALOGUE = {
    "S01": {"says": "One.", "tests": ["test_one.py::test_it"]},
    "S02": {"says": "Two.", "instead": "Nothing."},
    "S03": {"says": "Three.", "later": "another part"},
}
ONE = "tests/test_one.py::test_it"


def test_a_run_of_all_that_is_named_is_a_proof():
    assert behaviour.named_tests(CATALOGUE) == [ONE]
    assert behaviour.Watch(found={ONE}, here={ONE}).problems(CATALOGUE) == []


@pytest.mark.parametrize(
    ("watch", "problem"),
    [
        (behaviour.Watch(), f"there is no {ONE}"),
        (behaviour.Watch(found={ONE}, here={ONE}, may_be_left_out={ONE}), f"{ONE} may be left out"),
        (behaviour.Watch(found={ONE}, here={ONE}, skipped={ONE}), f"{ONE} was skipped"),
        (behaviour.Watch(found={ONE}), "nothing proves S01 on this database"),
    ],
)
def test_a_named_test_that_does_not_run_is_no_proof(watch, problem):
    assert problem in watch.problems(CATALOGUE)
