"""What the limit of a key is: the operator's override → the project's function → the first fitting rule → the default.

Only overrides and the function's last answers are stored; the rest is computed at each round, so a changed
setting holds from the next round on. The function is asked outside any transaction (`ask`).
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Any, Literal

from django_semq import conf, handlers
from django_semq.exceptions import InvalidLimit
from django_semq.locking import lock_semaphores, refuse_if_open, run
from django_semq.models import Semaphore
from django_semq.protocol.names import shown
from django_semq.rows import alias_of, chunks, write_back

logger = logging.getLogger(__name__)

Source = Literal["override", "function", "rule", "default"]
ANY_GROUP = "*"
UNKNOWN = {"unknown": True}


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """The limit of one key as it holds now."""

    limit: int | None
    source: Source
    is_unknown: bool
    """The function raised LookupError for the key, and no operator gave it a limit: nothing is given."""
    bases: tuple[Mapping[str, int | None], ...]
    """Ceilings of groups by the function and by the rule, in this order."""

    def ceiling(self, group: str) -> int | None:
        """The ceiling of a group that has no override, None if it has none."""
        for base in self.bases:
            if group in base:
                return base[group]
            if ANY_GROUP in base:
                return base[ANY_GROUP]
        return None


def limits_of(name: str, semaphore: Semaphore | None) -> KeyLimits:
    """The limits of a key; its row may be missing."""
    holder = conf.settings().holder
    rule: Mapping[str, Any] = next((rule for pattern, rule in holder.rules.items() if fnmatchcase(name, pattern)), {})
    answer = json.loads(semaphore.answer) if holder.limits and semaphore and semaphore.answer else None
    answer = answer or {}
    bases = tuple(base["groups"] for base in (answer, rule) if base.get("groups"))
    limit: int | None
    source: Source
    if semaphore is not None and semaphore.has_override:
        limit, source = semaphore.override, "override"
    elif answer.get("unknown"):
        limit, source = 0, "function"
    elif "limit" in answer:
        limit, source = answer["limit"], "function"
    elif "limit" in rule:
        limit, source = rule["limit"], "rule"
    else:
        limit, source = holder.default_limit, "default"
    return KeyLimits(limit, source, bool(answer.get("unknown")) and source != "override", bases)


def is_stale(semaphore: Semaphore, now: datetime) -> bool:
    """Whether the function has to be asked again before the next round of this key."""
    return conf.settings().holder.limits is not None and (
        semaphore.answered_at is None or now - semaphore.answered_at > conf.LIMIT_ANSWER_AGE
    )


def ask(names: Sequence[str], *, now: datetime) -> None:
    """Ask the LIMITS function for keys whose answer is soon too old, and store the answers.

    If it raises or hangs, the last answer holds for another minute, else the rules do; the error is logged once a
    minute.
    """
    path = conf.settings().holder.limits
    if path is None:
        return
    half = now - conf.LIMIT_ANSWER_AGE / 2  # asked early, so that a batch is not stopped for each of its keys
    rows = [
        row
        for part in chunks(names)
        for row in Semaphore.objects.filter(name__in=part).order_by("name")
        if row.answered_at is None or row.answered_at < half
    ]
    for row in rows:
        row.answered_at = now
        refuse_if_open("LIMITS")
        try:
            answer = handlers.answer(path, "SEMQ['HOLDER']['LIMITS']", row.name)
            row.answer = json.dumps(_checked_answer(answer, row.name))
        except LookupError:
            row.answer = json.dumps(UNKNOWN)
        except Exception:
            if handlers.may_complain(path):
                logger.exception("LIMITS failed for key %s; its last answer or the rules hold", shown(row.name))

    def write() -> None:
        mine = {row.pk for row in lock_semaphores([row.name for row in rows], skip_locked=True)}
        write_back(Semaphore, [row for row in rows if row.pk in mine], ["answer", "answered_at"])

    if rows:
        run(write, using=alias_of(Semaphore))


def digest() -> str:
    """Changes when RULES, DEFAULT_LIMIT or LIMITS do."""
    holder = conf.settings().holder
    text = json.dumps([holder.default_limit, holder.limits, holder.rules], sort_keys=False, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def _checked_answer(answer: object, key: str) -> dict[str, Any] | None:
    if answer is None:
        return None
    if not isinstance(answer, Mapping) or set(answer) - {"limit", "groups"}:
        raise InvalidLimit(
            f"LIMITS said {shown(answer)} for key {shown(key)}; give {{'limit': …, 'groups': …}} or None"
        )
    checked: dict[str, Any] = {}
    if "limit" in answer:
        checked["limit"] = conf.checked_limit(answer["limit"], f"the limit of key {shown(key)}")
    groups = answer.get("groups") or {}
    checked["groups"] = {
        str(group): conf.checked_limit(ceiling, f"the ceiling of group {shown(group)} of key {shown(key)}")
        for group, ceiling in groups.items()
    }
    return checked
