"""The application: what it is handed it keeps in a folder, where its workers find it.

A file is one piece of work. It goes by renaming from `waiting` through `taken` to `done`, which a kill cannot tear.
"""

import json
import os
import random
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tests.concurrency.observer import Observer

FOLDER = Path(os.environ.get("SEMQ_TEST_FOLDER", "."))
observer = Observer(FOLDER / "events")


class Work(NamedTuple):
    item: str
    key: str
    group: str


class Spool:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("written", "waiting", "taken", "done"):
            (folder / name).mkdir(parents=True, exist_ok=True)

    def knows(self, item: str) -> bool:
        """Asked in the order in which work moves, so that none slips through."""
        return (self.folder / "waiting" / item).exists() or bool(self._taken(item)) or self._is_done(item)

    def put(self, work: Work) -> None:
        written = self.folder / "written" / f"{work.item}.{os.getpid()}.{time.monotonic_ns()}"
        written.write_text(json.dumps(work))
        written.rename(self.folder / "waiting" / work.item)

    def take(self) -> Work | None:
        """Some work that waits, ours from now on; None if there is none, or another worker was faster."""
        waiting = os.listdir(self.folder / "waiting")
        if not waiting:
            return None
        item = random.choice(waiting)
        mine = self.folder / "taken" / f"{item}.{os.getpid()}"
        with suppress(FileNotFoundError):
            (self.folder / "waiting" / item).rename(mine)
            return Work(*json.loads(mine.read_text()))
        return None

    def is_over(self, item: str) -> bool:
        """Whether nobody will work on it any more: it is done, or its worker died."""
        if self._is_done(item):
            return True
        taken = self._taken(item)
        return bool(taken) and not any(_is_alive(int(path.suffix[1:])) for path in taken)

    def taken_by(self, pid: int) -> set[str]:
        return {path.stem for path in (self.folder / "taken").glob(f"*.{pid}")}

    def done(self, work: Work) -> None:
        (self.folder / "taken" / f"{work.item}.{os.getpid()}").rename(self.folder / "done" / work.item)

    def _taken(self, item: str) -> list[Path]:
        return list((self.folder / "taken").glob(f"{item}.*"))

    def _is_done(self, item: str) -> bool:
        return (self.folder / "done" / item).exists()


def admit(items) -> None:
    """ADMIT: the work begins here, and a worker ends it. Handed over twice is one piece of work: a good application
    sees to that."""
    spool = Spool(FOLDER)
    for item in items:
        if not spool.knows(item.id):
            observer.note("start", item.key, item.group, item.id)
            spool.put(Work(item.id, item.key, item.group))


def nothing(items) -> None:
    """ADMIT where the test itself looks for what is admitted."""


def finished(ids: list[str]) -> list[str]:
    """FINISHED"""
    spool = Spool(FOLDER)
    return [uid for uid in ids if spool.is_over(uid)]


def task(item: str, key: str, seconds: float) -> None:
    """What `async_task` runs."""
    observer.note("start", key, "", item)
    time.sleep(seconds)
    observer.note("end", key, "", item)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
