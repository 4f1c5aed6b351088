"""Settings: one dict, `SEMQ`, read lazily and checked as a whole. The defaults stand here, each with its reason.

Durations are seconds in the settings (int or float, above 0) and `timedelta` in the code.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import lru_cache
from typing import Any

from django.conf import settings as django_settings
from django.core.signals import setting_changed

from django_semq.exceptions import InvalidLimit, Misconfigured, UnknownQueue
from django_semq.protocol.names import shown

LOCAL_TRANSPORT = "django_semq.transport.local.LocalTransport"
TASK_ADMIT = "django_semq.driver.djangoq.admit"
MAX_LIMIT = 2**31 - 1

# Not settings: other values would break an inequality of the protocol or serve nobody.
AGED = timedelta(seconds=30)
"""Demand that waited longer is served first: half of every round goes to it, oldest first."""
LOCAL_FRESH = timedelta(seconds=60)
"""A local queue's part of a round is kept for this long after its last pump: one driver period and more."""
REMOTE_FRESH = timedelta(seconds=12)
"""A remote client's: a little longer than the longest pause that the holder asks of it."""
LIMIT_ANSWER_AGE = timedelta(seconds=60)
"""The LIMITS function is asked again for a key whose answer is older."""
IDLE_BEFORE_REMOVAL = timedelta(days=1)
"""Rows of a key that holds nothing go after this long: long enough for a daily job to find them again."""


@dataclass(frozen=True, slots=True)
class Queue:
    """One entry of `SEMQ["QUEUES"]`."""

    alias: str
    client_id: str
    """Identity at the holder. Local queues default to their alias: it is unique in the project by nature."""
    admit: str
    """Dotted path. Without one, items are tasks of `async_task`."""
    finished: str | None
    transport: str
    transport_options: Mapping[str, Any]
    finished_check: timedelta
    """60 s: a forgotten permit comes back within a minute or two, and `finished()` is not asked in a loop."""
    max_admit_batch: int
    """100: a bulk handler's statement of usual size; one failing item costs 100 hand-overs at most."""
    attempt_timeout: timedelta
    """60 s: above any sane hand-over (it starts work, it does not wait for it)."""
    retry_delay: str | None
    """Dotted path of `attempt -> seconds`; None: `min(60, 2 ** (attempt - 1))` times 0.5 to 1.5."""
    max_body_bytes: int
    """1 MiB: items carry references, not files."""


@dataclass(frozen=True, slots=True)
class Holder:
    """`SEMQ["HOLDER"]`."""

    default_limit: int | None
    """1: the only limit that is never too many for a resource nobody has described."""
    limits: str | None
    """Dotted path of `key -> {"limit": ..., "groups": {...}} | None`."""
    rules: Mapping[str, Mapping[str, Any]]
    grant_timeout: timedelta
    """30 s: three times what a client needs to report its claim with one retry of a 10 s request."""
    lease_ttl: timedelta
    """300 s: half of it outlasts the longest pause between two scheduled ticks (90 s) and a slow renewal."""
    dead_after: timedelta | None
    """None: no silence alone frees a permit; with a value the operator accepts that it does."""


@dataclass(frozen=True, slots=True)
class Driver:
    """`SEMQ["DRIVER"]`."""

    schedule: bool
    wake: bool
    poll_interval: timedelta
    """0.5 s: two indexed reads a second and process are free, and nobody notices half a second."""
    tick_seconds: timedelta
    """20 s: a tick takes no new work after that, so that a cluster's worker is not held for long."""
    threads: int
    """4: hand-overs wait on the network; more threads than that belong into more processes."""


@dataclass(frozen=True, slots=True)
class Settings:
    queues: Mapping[str, Queue]
    holder: Holder
    driver: Driver


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with the settings, as `manage.py check` shows it."""

    check: str
    text: str
    hint: str


def settings() -> Settings:
    """The project's settings. Raises `Misconfigured` with the first problem if there is any."""
    loaded, problems = load()
    if problems:
        raise Misconfigured(f"{problems[0].text} {problems[0].hint}")
    return loaded


def queue(alias: str) -> Queue:
    """The settings of one queue. Raises `UnknownQueue` for an alias that is not configured."""
    queues = settings().queues
    try:
        return queues[alias]
    except KeyError:
        raise UnknownQueue(
            f"queue {shown(alias)} is not configured; SEMQ['QUEUES'] has {', '.join(sorted(queues))}"
        ) from None


def problems() -> list[Problem]:
    return load()[1]


def checked_limit(value: object, what: str) -> int | None:
    """The limit, if it is one. Raises `InvalidLimit` for bool, float, negative and too large."""
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_LIMIT:
        return value
    raise InvalidLimit(
        f"{what} is {shown(value)}; give a whole number from 0 (blocks) to {MAX_LIMIT}, or None (unlimited)"
    )


@lru_cache(maxsize=1)
def load() -> tuple[Settings, list[Problem]]:
    reading = _Reading()
    return reading.settings(getattr(django_settings, "SEMQ", {})), reading.problems


def _reset(*, setting: str, **kwargs: Any) -> None:
    if setting == "SEMQ":
        load.cache_clear()


setting_changed.connect(_reset, dispatch_uid="django_semq.conf")


@dataclass
class _Reading:
    """Reads the dict once, going on after a problem so that the check shows all of them."""

    problems: list[Problem] = field(default_factory=list)

    def settings(self, given: object) -> Settings:
        top = self.section(given, "SEMQ", ("QUEUES", "HOLDER", "DRIVER"))
        driver = self.section(
            top.get("DRIVER", {}),
            "SEMQ['DRIVER']",
            ("SCHEDULE", "WAKE", "POLL_INTERVAL", "TICK_SECONDS", "THREADS"),
        )
        holder = self.section(
            top.get("HOLDER", {}),
            "SEMQ['HOLDER']",
            ("DEFAULT_LIMIT", "LIMITS", "RULES", "GRANT_TIMEOUT", "LEASE_TTL", "DEAD_AFTER"),
        )
        return Settings(
            queues=self.queues(top.get("QUEUES", {"default": {}})),
            holder=Holder(
                default_limit=self.limit(holder, "DEFAULT_LIMIT", 1, "SEMQ['HOLDER']"),
                limits=self.path(holder, "LIMITS", None, "SEMQ['HOLDER']"),
                rules=self.rules(holder.get("RULES", {})),
                grant_timeout=self.seconds(holder, "GRANT_TIMEOUT", 30, "SEMQ['HOLDER']"),
                lease_ttl=self.seconds(holder, "LEASE_TTL", 300, "SEMQ['HOLDER']"),
                dead_after=self.seconds(holder, "DEAD_AFTER", 1, "SEMQ['HOLDER']")
                if holder.get("DEAD_AFTER") is not None
                else None,
            ),
            driver=Driver(
                schedule=self.flag(driver, "SCHEDULE", "SEMQ['DRIVER']"),
                wake=self.flag(driver, "WAKE", "SEMQ['DRIVER']"),
                poll_interval=self.seconds(driver, "POLL_INTERVAL", 0.5, "SEMQ['DRIVER']"),
                tick_seconds=self.seconds(driver, "TICK_SECONDS", 20, "SEMQ['DRIVER']"),
                threads=self.count(driver, "THREADS", 4, "SEMQ['DRIVER']"),
            ),
        )

    def queues(self, given: object) -> dict[str, Queue]:
        if not isinstance(given, Mapping) or not given:
            self.wrong("SEMQ['QUEUES']", given, "a dict with an entry for each queue alias")
            given = {"default": {}}
        queues: dict[str, Queue] = {}
        for alias, entry in given.items():
            if not isinstance(alias, str) or not 0 < len(alias) <= 64 or "\0" in alias:
                self.wrong("SEMQ['QUEUES']", alias, "aliases of 1 to 64 characters")
                continue
            queues[alias] = self.queue(alias, entry)
        seen: dict[str, str] = {}
        for one in queues.values():
            if other := seen.get(one.client_id):
                self.problem(
                    "semq.E003",
                    f"SEMQ['QUEUES'][{one.alias!r}]['CLIENT_ID'] is {shown(one.client_id)},"
                    f" which queue {other!r} has too.",
                    "Give each queue an identity of its own: the holder counts by it.",
                )
            seen[one.client_id] = one.alias
        return queues

    def queue(self, alias: str, entry: object) -> Queue:
        where = f"SEMQ['QUEUES'][{alias!r}]"
        known = (
            "CLIENT_ID", "ADMIT", "FINISHED", "TRANSPORT", "TRANSPORT_OPTIONS", "FINISHED_CHECK",
            "MAX_ADMIT_BATCH", "ATTEMPT_TIMEOUT", "RETRY_DELAY", "MAX_BODY_BYTES",
        )  # fmt: skip
        given = self.section(entry, where, known)
        transport = self.path(given, "TRANSPORT", LOCAL_TRANSPORT, where) or LOCAL_TRANSPORT
        client_id = given.get("CLIENT_ID", alias if transport == LOCAL_TRANSPORT else None)
        if not isinstance(client_id, str) or not 0 < len(client_id) <= 255 or "\0" in client_id:
            self.problem(
                "semq.E003",
                f"{where}['CLIENT_ID'] is {shown(client_id)}.",
                "Give a text of 1 to 255 characters that no other queue or service uses.",
            )
            client_id = alias
        options = given.get("TRANSPORT_OPTIONS", {})
        if not isinstance(options, Mapping):
            self.wrong(f"{where}['TRANSPORT_OPTIONS']", options, "a dict of keyword arguments")
            options = {}
        return Queue(
            alias=alias,
            client_id=client_id,
            admit=self.path(given, "ADMIT", TASK_ADMIT, where) or TASK_ADMIT,
            finished=self.path(given, "FINISHED", None, where),
            transport=transport,
            transport_options=options,
            finished_check=self.seconds(given, "FINISHED_CHECK", 60, where),
            max_admit_batch=self.count(given, "MAX_ADMIT_BATCH", 100, where),
            attempt_timeout=self.seconds(given, "ATTEMPT_TIMEOUT", 60, where),
            retry_delay=self.path(given, "RETRY_DELAY", None, where),
            max_body_bytes=self.count(given, "MAX_BODY_BYTES", 2**20, where),
        )

    def rules(self, given: object) -> Mapping[str, Mapping[str, Any]]:
        where = "SEMQ['HOLDER']['RULES']"
        if not isinstance(given, Mapping):
            self.wrong(where, given, "a dict of pattern -> {'limit': ..., 'groups': {...}}")
            return {}
        for pattern, rule in given.items():
            at = f"{where}[{pattern!r}]"
            if not isinstance(pattern, str):
                self.wrong(where, pattern, "patterns that are text")
                continue
            entry = self.section(rule, at, ("limit", "groups"))
            self.limit(entry, "limit", None, at)
            groups = entry.get("groups", {})
            if not isinstance(groups, Mapping) or not all(isinstance(name, str) for name in groups):
                self.wrong(f"{at}['groups']", groups, "a dict of group -> ceiling")
                continue
            for name in groups:
                self.limit(groups, name, None, f"{at}['groups']")
        return given

    def section(self, given: object, where: str, known: tuple[str, ...]) -> Mapping[str, Any]:
        if not isinstance(given, Mapping):
            self.wrong(where, given, "a dict")
            return {}
        for name in given:
            if name not in known:
                near = difflib.get_close_matches(str(name), known, n=1)
                self.problem(
                    "semq.E002",
                    f"{where} has no setting {shown(name)}.",
                    f"Did you mean {near[0]!r}?" if near else f"It has {', '.join(known)}.",
                )
        return given

    def seconds(self, given: Mapping[str, Any], name: str, default: float, where: str) -> timedelta:
        value = given.get(name, default)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= MAX_LIMIT / 1000:
            return timedelta(seconds=value)
        self.wrong(f"{where}[{name!r}]", value, f"seconds above 0 and at most {MAX_LIMIT // 1000}")
        return timedelta(seconds=default)

    def count(self, given: Mapping[str, Any], name: str, default: int, where: str) -> int:
        value = given.get(name, default)
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MAX_LIMIT:
            return value
        self.wrong(f"{where}[{name!r}]", value, f"a whole number from 1 to {MAX_LIMIT}")
        return default

    def flag(self, given: Mapping[str, Any], name: str, where: str) -> bool:
        value = given.get(name, True)
        if isinstance(value, bool):
            return value
        self.wrong(f"{where}[{name!r}]", value, "True or False")
        return True

    def path(self, given: Mapping[str, Any], name: str, default: str | None, where: str) -> str | None:
        value = given.get(name, default)
        if value is None and default is None:
            return None
        if isinstance(value, str) and "." in value:
            return value
        self.wrong(f"{where}[{name!r}]", value, "a dotted path, as in 'shop.jobs.admit'")
        return default

    def limit(self, given: Mapping[str, Any], name: str, default: int | None, where: str) -> int | None:
        try:
            return checked_limit(given.get(name, default), f"{where}[{name!r}]")
        except InvalidLimit as error:
            self.problem("semq.E001", f"{error}.", "Correct the value.")
            return default

    def wrong(self, where: str, value: object, wanted: str) -> None:
        self.problem("semq.E001", f"{where} is {shown(value)}.", f"Give {wanted}.")

    def problem(self, check: str, text: str, hint: str) -> None:
        self.problems.append(Problem(check, text, hint))
