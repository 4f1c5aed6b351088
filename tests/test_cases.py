"""The list of others' faults in cases.toml and the tests that name them in their docstrings are in step."""

import ast
import re
import tomllib
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parent
LABEL = re.compile(r"\bB\d{2,3}\b")

Cases = dict[str, dict[str, str]]
Tests = dict[str, list[str]]


def read_cases() -> Cases:
    """A label that comes twice is an error of TOML."""
    return tomllib.loads((FOLDER / "cases.toml").read_text())


def read_tests() -> Tests:
    """Label -> the tests that name it."""
    tests = defaultdict(list)
    for file in sorted(FOLDER.rglob("test_*.py")):
        for label, test in named_in(file.read_text()):
            tests[label].append(f"{file.relative_to(FOLDER)}::{test}")
    return tests


def named_in(source: str) -> list[tuple[str, str]]:
    return [
        (label, node.name)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test_")
        for label in LABEL.findall(ast.get_docstring(node) or "")
    ]


def problems(cases: Cases, tests: Tests) -> list[str]:
    found = [
        f"{test} names {label}, which is not in the list" for label in tests.keys() - cases for test in tests[label]
    ]
    for label, case in cases.items():
        has_none = "later" in case or "instead" in case
        if not case.get("says", "").endswith("."):
            found.append(f"{label} does not say what goes wrong")
        if set(case) not in ({"says"}, {"says", "rest"}, {"says", "later"}, {"says", "instead"}):
            found.append(f"{label} has {', '.join(case)}")
        if has_none:
            found += [f"{test} names {label}, which has no tests" for test in tests.get(label, ())]
        elif not tests.get(label):
            found.append(f"{label} has no test")
    return found


def test_every_case_has_a_test_or_says_why_it_has_none():
    assert problems(read_cases(), read_tests()) == []


def test_cases_are_in_the_order_of_their_numbers():
    labels = list(read_cases())
    assert all(LABEL.fullmatch(label) for label in labels)
    assert labels == sorted(labels, key=lambda label: int(label[1:]))


ONE = {"B01": {"says": "It breaks."}}


@pytest.mark.parametrize(
    ("cases", "tests", "problem"),
    [
        (ONE, {}, "B01 has no test"),
        (ONE, {"B01": ["one"], "B02": ["two"]}, "two names B02, which is not in the list"),
        ({"B01": {"says": "It breaks.", "later": "leases"}}, {"B01": ["one"]}, "one names B01, which has no tests"),
        ({"B01": {"says": "It breaks.", "instead": "Never."}}, {"B01": ["one"]}, "one names B01, which has no tests"),
        ({"B01": {"says": ""}}, {"B01": ["one"]}, "B01 does not say what goes wrong"),
        ({"B01": {"says": "It breaks.", "tests": ""}}, {"B01": ["one"]}, "B01 has says, tests"),
    ],
)
def test_a_list_that_is_out_of_step_is_told(cases: dict[str, Any], tests: Tests, problem: str):
    assert problems(ONE, {"B01": ["one"]}) == []
    assert problems(cases, tests) == [problem]


def test_a_test_names_its_cases_in_its_docstring():
    source = '''
def test_one():
    """It holds. (B01, B117)"""

def test_two():
    name = "B02"

def helper():
    """(B03)"""
'''
    assert named_in(source) == [("B01", "test_one"), ("B117", "test_one")]
