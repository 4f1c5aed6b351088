import pytest

from tests.sim.conftest import projects_databases, sim  # noqa: F401 — fixtures of the simulated world


def pytest_addoption(parser: pytest.Parser) -> None:
    """Known where this folder is named: `pytest tests/scenarios --rewrite`."""
    parser.addoption("--rewrite", action="store_true", help="write what the scenarios print into their files")
