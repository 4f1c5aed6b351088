"""The commands for operators and for cron: what they print, and how they end (0 fine, 1 a finding, 2 wrong usage)."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from django_semq import clock, enqueue, enqueue_many, queues, semaphores, status
from django_semq.models import Demand, Item, Key, KeyGroup, Nudge
from tests.factories import ClientFactory, DemandFactory, NudgeFactory

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def semq(settings) -> Callable[..., None]:
    def configure(**semq: dict) -> None:
        settings.SEMQ = {"DRIVER": {"WAKE": False}} | semq

    configure(QUEUES={"default": {"ADMIT": f"{__name__}.admit"}})
    return configure


admitted: list[str] = []


def admit(items: list) -> None:
    admitted.extend(item.id for item in items)


@pytest.fixture(autouse=True)
def _nothing_admitted():
    admitted.clear()


@dataclass
class Ran:
    code: int
    lines: list[str]
    errors: str


def run(command: str, *args: str) -> Ran:
    """The command as a shell would see it."""
    out, errors = StringIO(), StringIO()
    code: int | str | None = 0
    try:
        call_command(command, *args, stdout=out, stderr=errors)
    except SystemExit as end:
        code = end.code
    except CommandError as error:
        code = error.returncode
        errors.write(str(error))
    return Ran(code, out.getvalue().splitlines(), errors.getvalue())


# ---------------------------------------------------------------------------------------------------------- semq_tick


def test_semq_tick_runs_everything_due():
    enqueue("acct-42", None, id="order:7")
    ran = run("semq_tick")

    assert admitted == ["order:7"]
    assert ran.code == 0


def test_semq_tick_says_idle_where_nothing_will_become_due():
    assert run("semq_tick") == Ran(0, ["idle"], "")


def test_semq_tick_says_when_a_tick_is_next_needed(semq):
    semq(QUEUES={"default": {"ADMIT": f"{__name__}.admit", "FINISHED": f"{__name__}.finished", "FINISHED_CHECK": 3600}})
    enqueue("acct-42", None, id="order:7")
    ran = run("semq_tick")

    (line,) = ran.lines
    assert datetime.fromisoformat(line) == Item.objects.get().due_at


def finished(ids: list[str]) -> list[str]:
    return []


# --------------------------------------------------------------------------------------------------------- semq_limit


def test_semq_limit_shows_the_limit_of_a_key_and_what_is_issued_of_it(semq):
    semq(
        QUEUES={"default": {"ADMIT": f"{__name__}.admit"}},
        HOLDER={"RULES": {"acct-*": {"limit": 5, "groups": {"exports": 2}}}},
    )
    enqueue_many({"key": "acct-42", "body": None, "group": "exports"} for _number in range(3))
    ran = run("semq_limit", "acct-42")

    assert ran.code == 0
    limit, group, issued = ran.lines
    assert limit == "acct-42: limit 5 (rule), footprint 2, headroom 3"
    assert group == "  group 'exports': ceiling 2, footprint 2"
    assert issued.startswith("  grant ")
    assert "of default, group 'exports': 2 of 2 in use since 20" in issued


def test_semq_limit_shows_a_key_that_nobody_has_used():
    assert run("semq_limit", "acct-42") == Ran(0, ["acct-42: limit 1 (default), footprint 0, headroom 1"], "")


def test_semq_limit_sets_a_limit_that_is_felt_at_once():
    enqueue_many({"key": "acct-42", "body": None, "id": f"order:{number}"} for number in range(3))
    assert status("order:2").state == "queued"
    ran = run("semq_limit", "acct-42", "3")

    assert ran.lines[0] == "acct-42: limit 3 (override), footprint 3, headroom 0"
    assert status("order:2").state == "admitted"


def test_semq_limit_takes_none_for_unlimited_and_goes_back_to_the_base_with_reset():
    assert run("semq_limit", "acct-42", "none").lines == [
        "acct-42: limit unlimited (override), footprint 0, headroom unlimited"
    ]
    assert run("semq_limit", "acct-42", "--reset").lines == ["acct-42: limit 1 (default), footprint 0, headroom 1"]


def test_semq_limit_pauses_and_resumes_a_key():
    ran = run("semq_limit", "acct-42", "--pause")
    assert ran.lines == ["acct-42: limit 1 (default), footprint 0, headroom 1, paused"]
    enqueue("acct-42", None, id="order:7")
    assert status("order:7").blocked == "paused"

    run("semq_limit", "acct-42", "--resume")
    assert status("order:7").state == "admitted"


def test_semq_limit_changes_one_group_of_a_key():
    run("semq_limit", "acct-42", "none")
    run("semq_limit", "acct-42", "2", "--group", "exports")
    ran = run("semq_limit", "acct-42", "--pause", "--group", "exports")
    assert ran.lines == [
        "acct-42: limit unlimited (override), footprint 0, headroom unlimited",
        "  group 'exports': ceiling 2, footprint 0, paused",
    ]

    run("semq_limit", "acct-42", "--resume", "--group", "exports")
    assert not semaphores.usage("acct-42").groups["exports"].paused
    run("semq_limit", "acct-42", "--reset", "--group", "exports")
    assert semaphores.usage("acct-42").groups == {}


def test_semq_limit_prints_json_for_programs():
    semaphores.set_limit("acct-42", 2)
    enqueue("acct-42", None, group="exports", id="order:7")
    ran = run("semq_limit", "acct-42", "--json")

    (line,) = ran.lines
    shown = json.loads(line)
    (issued,) = shown.pop("issued")
    assert shown == {
        "limit": 2,
        "source": "override",
        "footprint": 1,
        "headroom": 1,
        "paused": False,
        "groups": {"exports": {"ceiling": None, "footprint": 1, "headroom": None, "paused": False}},
    }
    assert (issued["client"], issued["kind"], issued["group"]) == ("default", "grant", "exports")
    assert (issued["permits"], issued["in_use"]) == (1, 1)
    assert datetime.fromisoformat(issued["since"]) == Item.objects.get().admitted_at


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["acct-42", "many"], "give a whole number, or `none` for unlimited"),
        (["acct-42", "2.5"], "give a whole number, or `none` for unlimited"),
        (["acct-42", "-1"], "give a whole number from 0 (blocks) to 2147483647, or None (unlimited)"),
        (["acct-42", "2147483648"], "give a whole number from 0 (blocks) to 2147483647, or None (unlimited)"),
        ([""], "key is ''"),
        (["acct-42", "1", "--group", "a" * 256], "group is 'aaa"),
    ],
)
def test_semq_limit_refuses_what_is_no_limit_key_or_group_and_changes_nothing(args, said):
    ran = run("semq_limit", *args)

    assert ran.code == 2
    assert said in ran.errors
    assert ran.lines == []
    assert semaphores.usage("acct-42").source == "default"


@pytest.mark.processes
@pytest.mark.parametrize(
    "args",
    [
        ["semq_limit"],
        ["semq_limit", "acct-42", "1", "--pause"],
        ["semq_limit", "acct-42", "many"],
        ["semq_doctor", "--mend"],
    ],
)
def test_wrong_usage_ends_with_2(spawn, args):
    assert spawn("django", *args).wait(60) == 2


# -------------------------------------------------------------------------------------------------------- semq_doctor


def test_semq_doctor_finds_nothing_where_all_counters_are_right():
    enqueue_many({"key": f"acct-{number % 3}", "body": None} for number in range(10))
    assert run("semq_doctor") == Ran(0, ["all counters are right"], "")


def test_semq_doctor_says_of_each_counter_what_it_is_and_what_it_should_be():
    enqueue_many({"key": "acct-42", "body": None, "group": "exports"} for _number in range(3))
    KeyGroup.objects.update(queued=7)
    ran = run("semq_doctor")

    assert ran == Ran(1, ["queue default key 'acct-42' group 'exports': queued is 7, should be 2"], "")
    assert KeyGroup.objects.get().queued == 7


def test_semq_doctor_returns_the_permits_of_items_that_were_deleted_by_hand():
    enqueue_many({"key": "acct-42", "body": None, "id": f"order:{number}"} for number in range(2))
    Item.objects.filter(uid="order:0")._raw_delete("default")
    ran = run("semq_doctor", "--repair")

    assert ran.code == 0
    assert ran.lines[-2:] == ["repaired 2 counter(s)", "all counters are right"]
    run("semq_tick")
    assert status("order:1").state == "admitted"


def test_semq_doctor_names_a_key_that_nobody_pumps():
    """(B55)"""
    NudgeFactory(queued_delta=0, created_at=clock.now() - timedelta(minutes=2))
    ran = run("semq_doctor")

    assert ran.code == 1
    (line,) = ran.lines
    assert line.startswith("queue default key 'acct-42': its oldest nudge is of ")
    Nudge.objects.update(created_at=clock.now() - timedelta(seconds=50))
    assert run("semq_doctor").code == 0


def test_semq_doctor_names_a_key_that_is_set_aside_and_why():
    Key.objects.create(
        queue="default",
        name="acct-42",
        set_aside_until=clock.now() + timedelta(minutes=5),
        set_aside_count=9,
        error="RuntimeError: it broke",
    )
    ran = run("semq_doctor")

    assert ran.code == 1
    (line,) = ran.lines
    assert "key 'acct-42': set aside until" in line
    assert line.endswith("RuntimeError: it broke")


def test_semq_doctor_names_demand_of_a_queue_that_the_settings_do_not_have():
    DemandFactory(client=ClientFactory(client_id="old", queue="old"))
    ran = run("semq_doctor")

    assert ran == Ran(1, ["the holder keeps demand of queue old, which SEMQ['QUEUES'] does not have"], "")
    Demand.objects.all().delete()
    assert run("semq_doctor").code == 0


# --------------------------------------------------------------------------------------------------------- semq_stats


@pytest.fixture
def _two_queues(semq):
    entry = {"ADMIT": f"{__name__}.admit"}
    semq(QUEUES={"default": entry, "reports": entry})
    enqueue_many({"key": "acct-42", "body": None, "group": "exports"} for _number in range(3))
    queues["reports"].enqueue("acct-7", None)


@pytest.mark.usefixtures("_two_queues")
def test_semq_stats_shows_what_waits_what_runs_and_why_the_rest_does_not():
    assert run("semq_stats") == Ran(
        0,
        [
            "default: 2 queued, 0 claiming, 1 admitted",
            "reports: 0 queued, 0 claiming, 1 admitted",
            "queue    key      group    queued  claiming  admitted  blocked",
            "default  acct-42  exports  2       0         1         key_limit",
            "reports  acct-7            0       0         1",
        ],
        "",
    )


@pytest.mark.usefixtures("_two_queues")
def test_semq_stats_prints_json_for_programs():
    ran = run("semq_stats", "--json")

    (line,) = ran.lines
    assert json.loads(line) == {
        "queues": {
            "default": {"queued": 2, "claiming": 0, "admitted": 1},
            "reports": {"queued": 0, "claiming": 0, "admitted": 1},
        },
        "groups": [
            {
                "queue": "default",
                "key": "acct-42",
                "group": "exports",
                "queued": 2,
                "claiming": 0,
                "admitted": 1,
                "blocked": "key_limit",
            },
            {
                "queue": "reports",
                "key": "acct-7",
                "group": "",
                "queued": 0,
                "claiming": 0,
                "admitted": 1,
                "blocked": "",
            },
        ],
    }
    assert ran.code == 0


def test_semq_stats_of_an_empty_project_is_a_table_without_rows():
    assert run("semq_stats") == Ran(
        0, ["default: 0 queued, 0 claiming, 0 admitted", "queue  key  group  queued  claiming  admitted  blocked"], ""
    )
