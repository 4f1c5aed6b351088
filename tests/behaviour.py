"""The catalogue of behaviours, and a command that runs every test it names: `python -m tests.behaviour`.

A named test that is skipped proves nothing, so here it is a failure. What is left out because it means nothing
on this database is none, as long as each behaviour has a test that ran. Further arguments go to pytest;
with `--collect-only` it is only looked whether all of them are there.
"""

import sys
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parent

Catalogue = dict[str, dict[str, Any]]


def read() -> Catalogue:
    return tomllib.loads((FOLDER / "behaviour.toml").read_text())


def named_tests(catalogue: Catalogue) -> list[str]:
    """As pytest names them, each once."""
    return sorted({f"tests/{test}" for entry in catalogue.values() for test in entry.get("tests", ())})


@dataclass(eq=False)
class Watch:
    """A plugin of pytest that notes which tests there are and what becomes of them, parameters left aside."""

    found: set[str] = field(default_factory=set)
    may_be_left_out: set[str] = field(default_factory=set)
    here: set[str] = field(default_factory=set)
    skipped: set[str] = field(default_factory=set)

    @pytest.hookimpl(tryfirst=True)
    def pytest_itemcollected(self, item: pytest.Item) -> None:
        self.found.add(_name(item.nodeid))
        if any(item.get_closest_marker(mark) for mark in ("skip", "skipif", "xfail")):
            self.may_be_left_out.add(_name(item.nodeid))

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.here = {_name(item.nodeid) for item in session.items}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped:
            self.skipped.add(_name(report.nodeid))

    def problems(self, catalogue: Catalogue) -> list[str]:
        named = set(named_tests(catalogue))
        problems = [f"there is no {test}" for test in sorted(named - self.found)]
        problems += [f"{test} may be left out" for test in sorted(named & self.may_be_left_out)]
        problems += [f"{test} was skipped" for test in sorted(named & self.skipped)]
        problems += [
            f"nothing proves {label} on this database"
            for label, entry in catalogue.items()
            if entry.get("tests") and not {f"tests/{test}" for test in entry["tests"]} & self.here
        ]
        return problems


def main(arguments: list[str]) -> int:
    catalogue = read()
    watch = Watch()
    code = pytest.main([*named_tests(catalogue), *arguments], plugins=[watch])
    problems = watch.problems(catalogue)
    for problem in problems:
        print(problem)
    return int(code) or bool(problems)


def _name(nodeid: str) -> str:
    return nodeid.partition("[")[0]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
