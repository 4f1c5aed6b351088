"""Everything that must hold before a change is taken: `python -m tests [--only PART] [pytest arguments]`.

The parts, in this order: the checks (style, types, imports, migrations), the suite on each database, and the
matrix: the fast SQLite suite on the other Pythons found here, each with another Django. All that was asked
for runs, and the report at the end says what failed.

SEMQ_TEST_REQUIRE=sqlite,postgres,mariadb makes it an error that one of them is missing or skips a test.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from xml.etree import ElementTree

from tests import databases

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent

# Each supported Python once and each supported Django once; the rest of the grid adds little.
MATRIX = {"3.11": "5.2", "3.12": "6.0", "3.13": "6.1"}

# What tests commit need not outlive their server. The one test that kills a server of its own takes this back.
NOT_SYNCED = {"postgres": {"PGOPTIONS": "-c synchronous_commit=off"}}

PARTS = ("checks", *databases.NAMES, "matrix")


@dataclass
class Tally:
    """What a pytest run's report file says."""

    passed: int = 0
    failed: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, report: Path) -> "Tally":
        tally = cls()
        for case in ElementTree.parse(report).iter("testcase"):
            test = f"{case.get('classname')}.{case.get('name')}"
            if case.find("failure") is not None or case.find("error") is not None:
                tally.failed.append(test)
            elif (skip := case.find("skipped")) is not None:
                tally.skipped.append(f"{test} ({skip.get('message')})")
            else:
                tally.passed += 1
        return tally

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(self.passed + other.passed, self.failed + other.failed, self.skipped + other.skipped)

    def __str__(self) -> str:
        return f"{self.passed} passed, {len(self.failed)} failed, {len(self.skipped)} skipped"


@dataclass
class Result:
    """One line of the report, with the lines that explain it."""

    name: str
    outcome: str
    failed: bool = False
    left_out: bool = False
    details: list[str] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)

    def __str__(self) -> str:
        mark = "✗" if self.failed else "-" if self.left_out else "✓"
        return "\n    ".join([f"{mark} {self.name}: {self.outcome}", *self.details])


def main() -> int:
    options, pytest_args = arguments()
    if missing := [name for name in ("django", "psycopg", "pymysql", "pytest") if find_spec(name) is None]:
        sys.exit(f"Not installed for {sys.executable}: {', '.join(missing)}. Run `make test`.")
    # A run that is told to stop still stops the servers it has started.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    required = [name for name in os.environ.get("SEMQ_TEST_REQUIRE", "").split(",") if name]

    results: list[Result] = []
    if "checks" in options.parts:
        results += checks()
    for name in databases.NAMES:
        if name in options.parts:
            results.append(suite_on(name, name in required, pytest_args))
    if "matrix" in options.parts:
        results += matrix(pytest_args)

    return report(results)


def arguments() -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser("python -m tests", description=__doc__, allow_abbrev=False)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--only", action="append", choices=PARTS, help="run this part (may be repeated)")
    parser.add_argument("--no-matrix", action="store_true", help="stay on this Python and Django")
    options, pytest_args = parser.parse_known_args()
    options.parts = set(options.only or PARTS)
    if options.no_matrix:
        options.parts.discard("matrix")
    return options, pytest_args


def checks() -> Iterator[Result]:
    manage = [sys.executable, "manage.py"]
    for name, command in {
        "ruff check": [BIN / "ruff", "check", "."],
        "ruff format": [BIN / "ruff", "format", "--check", "."],
        "mypy": [BIN / "mypy"],
        "import rules": [BIN / "lint-imports"],
        "migrations": [*manage, "makemigrations", "django_semq", "--check", "--dry-run"],
        "django checks": [*manage, "check", "--fail-level", "WARNING"],
    }.items():
        failed = run(name, command, {"SEMQ_TEST_DB": "sqlite"}) != 0
        yield Result(name, "FAILED" if failed else "ok", failed)


def suite_on(name: str, required: bool, pytest_args: list[str]) -> Result:
    try:
        with databases.serving(name) as server:
            env = server.env | {"SEMQ_TEST_DB": name} | NOT_SYNCED.get(name, {})
            return suite(f"{name} {server.version}", sys.executable, env, pytest_args, required)
    except databases.Missing as reason:
        return Result(name, f"left out: {reason}", failed=required, left_out=True)


def suite(
    name: str,
    python: str | Path,
    env: dict[str, str],
    pytest_args: list[str],
    required: bool = False,
) -> Result:
    with tempfile.TemporaryDirectory() as folder:
        junit = Path(folder, "report.xml")
        code = run(name, [python, "-m", "pytest", f"--junitxml={junit}", *pytest_args], env)
        if not junit.exists():
            return Result(name, f"pytest ended with {code} and no report", failed=True)
        tally = Tally.read(junit)

    result = Result(name, str(tally), failed=code != 0, tally=tally)
    if code > 1:
        result.details.append("no test was run" if code == 5 else f"pytest ended with {code}")
    result.details += [f"failed: {test}" for test in tally.failed]
    if required and tally.skipped:
        result.failed = True
        result.details += [f"may not be skipped here: {test}" for test in tally.skipped]
    return result


def matrix(pytest_args: list[str]) -> Iterator[Result]:
    here = "{}.{}".format(*sys.version_info)
    for version, django in MATRIX.items():
        if version == here:
            continue
        name = f"Python {version}, Django {django}"
        python = interpreter(version)
        if python is None:
            yield Result(name, f"left out: no python{version} here", left_out=True)
            continue
        try:
            venv_python = environment(version, django, python)
        except subprocess.CalledProcessError as error:
            yield Result(name, f"FAILED: {error}", failed=True)
            continue
        env = {"SEMQ_TEST_DB": "sqlite"}
        yield suite(name, venv_python, env, ["-m", "not processes", *pytest_args])


def interpreter(version: str) -> Path | None:
    in_path = shutil.which(f"python{version}")
    by_pyenv = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python{version}"))
    for candidate in filter(None, [in_path, *by_pyenv]):
        # A pyenv shim is in PATH for every version, also for those that are not switched on.
        if subprocess.run([candidate, "-c", ""], capture_output=True).returncode == 0:
            return Path(candidate)
    return None


def environment(version: str, django: str, python: Path) -> Path:
    """Make the virtual environment, or take the one made since pyproject.toml changed."""
    folder = ROOT / ".venvs" / f"python{version}-django{django}"
    venv_python = folder / "bin" / "python"
    stamp = folder / "installed"
    pyproject = ROOT / "pyproject.toml"
    if not stamp.exists() or stamp.stat().st_mtime < pyproject.stat().st_mtime:
        heading(f"making {folder.relative_to(ROOT)}")
        subprocess.run([python, "-m", "venv", "--clear", folder], check=True)
        install = ["-m", "pip", "--disable-pip-version-check", "install", "-qq"]
        subprocess.run([venv_python, *install, "-e", f"{ROOT}[test]", f"django=={django}.*"], check=True)
        stamp.touch()
    return venv_python


def run(name: str, command: list, env: dict[str, str]) -> int:
    heading(name)
    try:
        return subprocess.run(
            command,
            cwd=ROOT,
            env=os.environ | {"DJANGO_SETTINGS_MODULE": "tests.settings"} | env,
            stdin=subprocess.DEVNULL,
        ).returncode
    except FileNotFoundError:
        print(f"{command[0]} is not installed: run `make venv`.")
        return 127


def heading(text: str) -> None:
    print(f"\n=== {text}", flush=True)


def report(results: list[Result]) -> int:
    heading("report")
    for result in results:
        print(result)
    print(f"total: {sum((result.tally for result in results), start=Tally())}")
    return 1 if any(result.failed for result in results) else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
