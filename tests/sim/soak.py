"""Many histories, one seed after the other: `python -m tests.sim.soak --seeds 1-500 [--steps 400]`.

Ends with 1 at the first that breaks an invariant, and prints its seed and the last steps before.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import django

if TYPE_CHECKING:
    from tests.sim.world import World


@dataclass
class Soaked:
    """What a number of histories came to."""

    seeds: int = 0
    steps: int = 0
    left: int = 0
    crossed: Counter[str] = field(default_factory=Counter)
    crashed: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    def add(self, world: World) -> None:
        self.seeds += 1
        self.steps += world.steps
        self.left += world.left
        self.crossed += world.faults.crossed
        self.crashed += world.faults.crashed

    def __str__(self) -> str:
        speed = self.steps / self.seconds if self.seconds else 0
        return (
            f"{self.seeds} seeds, {self.steps} steps, {speed:.0f} a second; {self.crashed.total()} crashes at"
            f" {len(self.crashed)} points; {self.left} keys found taken and left to their owner"
        )


def soak(seeds: Iterable[int], steps: int, done: Soaked | None = None) -> Soaked:
    """Play the histories of these seeds. Raises `Broken` at the first that breaks an invariant."""
    from tests.sim.walk import history

    done = done or Soaked()
    began = time.monotonic()
    for seed in seeds:
        done.add(history(seed, steps))
    done.seconds += time.monotonic() - began
    return done


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", default="1-100", help="one seed, or from-to")
    parser.add_argument("--steps", type=int, default=400, help="of each history, before all is well")
    options = parser.parse_args()
    first, _dash, last = options.seeds.partition("-")

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    django.setup()
    from tests.sim.faults import all_points
    from tests.sim.projects import databases

    with databases():
        try:
            done = soak(range(int(first), int(last or first) + 1), options.steps)
        except BaseException:
            traceback.print_exc()
            return 1
    print(done)
    print("never crossed: " + (", ".join(sorted(set(all_points()) - set(done.crossed))) or "none"))
    print("never died at: " + (", ".join(sorted(set(all_points()) - set(done.crashed))) or "none"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
