"""Where the limit of a key comes from: the operator, the project's function, the rules, the default."""

import logging

import pytest

from django_semq import enqueue, enqueue_many, release, semaphores, status, usage

FUNCTION = "tests.queue.application.limits"


def told(key: str) -> tuple[int | None, str]:
    said = semaphores.usage(key)
    return (said.limit, said.source)


def ask_for(key: str = "acct-42", group: str = "", count: int = 1) -> None:
    enqueue_many([{"key": key, "group": group, "body": {}} for _n in range(count)])


def ceiling(group: str, key: str = "acct-42") -> int | None:
    return semaphores.usage(key).groups[group].ceiling


def test_the_operator_goes_before_the_function_the_rules_and_the_default(app):
    app.configure(holder={"DEFAULT_LIMIT": 4, "RULES": {"acct-*": {"limit": 3}}, "LIMITS": FUNCTION})
    app.on_limits = lambda key: {"limit": 2} if key == "acct-42" else None
    ask_for("acct-42")
    ask_for("acct-1")
    ask_for("other")

    assert told("other") == (4, "default")
    assert told("acct-1") == (3, "rule")
    assert told("acct-42") == (2, "function")
    semaphores.set_limit("acct-42", 1)
    assert told("acct-42") == (1, "override")


def test_a_reset_returns_to_the_base_through_all_steps(app):
    app.configure(holder={"RULES": {"acct-*": {"limit": 3}}, "LIMITS": FUNCTION})
    app.on_limits = lambda key: {"limit": 2}
    ask_for()
    semaphores.set_limit("acct-42", 9)
    semaphores.reset_limit("acct-42")
    assert told("acct-42") == (2, "function")
    app.on_limits = lambda key: None
    semaphores.refresh("acct-42")
    ask_for()
    assert told("acct-42") == (3, "rule")


def test_the_first_rule_that_fits_counts_in_written_order(app):
    app.configure(holder={"RULES": {"acct-4?": {"limit": 4}, "acct-*": {"limit": 3}, "acct-42": {"limit": 2}}})
    assert told("acct-42") == (4, "rule")
    assert told("acct-421") == (3, "rule")


def test_patterns_tell_upper_from_lower_case(app):
    app.configure(holder={"RULES": {"Acct-*": {"limit": 3}}})
    assert told("acct-42") == (1, "default")


def test_a_key_that_nobody_ever_used_has_its_base_and_nothing_out(app):
    app.configure(holder={"DEFAULT_LIMIT": 7})
    assert semaphores.usage("acct-42") == semaphores.KeyUsage(7, "default", 0, 7, False, {}, [])


def test_a_rule_without_a_limit_has_no_opinion_on_it(app):
    app.configure(holder={"DEFAULT_LIMIT": 5, "RULES": {"acct-*": {"groups": {"exports": 2}}}})
    assert told("acct-42") == (5, "default")


@pytest.mark.parametrize("source", ["override", "function", "rule", "default"])
def test_unlimited_can_be_said_by_each_of_them(app, source):
    holder = {"DEFAULT_LIMIT": None if source == "default" else 1, "LIMITS": FUNCTION}
    if source == "rule":
        holder["RULES"] = {"*": {"limit": None}}
    app.configure(holder=holder)
    app.on_limits = lambda key: {"limit": None} if source == "function" else None
    if source == "override":
        semaphores.set_limit("acct-42", None)
    ask_for(count=50)

    assert usage()["admitted"] == 50
    said = semaphores.usage("acct-42")
    assert (said.limit, said.source, said.footprint, said.headroom) == (None, source, 50, None)


def test_ceilings_follow_the_same_order(app):
    app.configure(
        holder={"DEFAULT_LIMIT": None, "RULES": {"*": {"groups": {"a": 1, "b": 2, "c": 3}}}, "LIMITS": FUNCTION}
    )
    app.on_limits = lambda key: {"groups": {"a": 5, "b": 6}}
    semaphores.set_ceiling("acct-42", "a", 7)
    for group in "abcd":
        ask_for(group=group, count=10)

    assert [ceiling(group) for group in "abcd"] == [7, 6, 3, None]
    assert {group: said.footprint for group, said in semaphores.usage("acct-42").groups.items()} == {
        "a": 7,
        "b": 6,
        "c": 3,
        "d": 10,
    }


def test_the_star_is_the_ceiling_of_groups_that_are_not_named(app):
    app.configure(holder={"DEFAULT_LIMIT": None, "RULES": {"*": {"groups": {"*": 2, "big": 5, "open": None}}}})
    for group in ["big", "open", "other", ""]:
        ask_for(group=group, count=9)
    footprints = {group: said.footprint for group, said in semaphores.usage("acct-42").groups.items()}
    assert footprints == {"": 2, "big": 5, "open": 9, "other": 2}


def test_a_group_called_star_is_one_of_those(app):
    app.configure(holder={"DEFAULT_LIMIT": None, "RULES": {"*": {"groups": {"*": 2}}}})
    ask_for(group="*", count=9)
    assert ceiling("*") == 2


def test_the_key_s_limit_holds_over_all_its_groups(app):
    app.configure(holder={"DEFAULT_LIMIT": 5, "RULES": {"*": {"groups": {"*": 3}}}})
    for group in "abc":
        ask_for(group=group, count=9)
    said = semaphores.usage("acct-42")
    assert (said.footprint, said.headroom) == (5, 0)
    assert all(group.footprint <= 3 for group in said.groups.values())


def test_a_ceiling_can_be_reset_alone(app):
    app.configure(holder={"DEFAULT_LIMIT": None, "RULES": {"*": {"groups": {"exports": 2}}}})
    semaphores.set_limit("acct-42", 9)
    semaphores.set_ceiling("acct-42", "exports", 1)
    ask_for(group="exports", count=5)
    semaphores.reset_limit("acct-42", "exports")
    assert ceiling("exports") == 2
    assert told("acct-42") == (9, "override")
    assert usage()["admitted"] == 2


def test_the_function_is_asked_once_a_minute_and_key(app):
    app.configure(holder={"LIMITS": FUNCTION})
    for _time in range(3):
        ask_for("acct-42")
        ask_for("acct-1")
    assert sorted(app.limits_asked) == ["acct-1", "acct-42"]
    app.pass_time(seconds=61)
    ask_for("acct-42")
    assert sorted(app.limits_asked) == ["acct-1", "acct-42", "acct-42"]


def test_what_the_function_says_holds_from_the_first_round_on(app):
    app.configure(holder={"DEFAULT_LIMIT": 1, "LIMITS": FUNCTION})
    app.on_limits = lambda key: {"limit": 3, "groups": {"exports": 2}}
    ask_for(group="exports", count=5)
    ask_for(count=5)
    said = semaphores.usage("acct-42")
    assert (said.footprint, said.groups["exports"].footprint) == (3, 2)


def test_a_key_that_the_function_does_not_know_gets_nothing(app):
    app.configure(holder={"DEFAULT_LIMIT": 5, "LIMITS": FUNCTION})

    def limits(key):
        raise LookupError(key)

    app.on_limits = limits
    enqueue("tpyo", {}, id="a")
    assert status("a").blocked == "unknown_key"
    assert semaphores.usage("tpyo").footprint == 0

    app.on_limits = lambda key: None
    app.pass_time(seconds=61)
    enqueue("tpyo", {}, id="b")
    assert status("a").state == "admitted"


def test_an_operator_may_give_a_limit_to_a_key_that_the_function_does_not_know(app):
    app.configure(holder={"LIMITS": FUNCTION})

    def limits(key):
        raise LookupError(key)

    app.on_limits = limits
    enqueue("by-hand", {}, id="a")
    semaphores.set_limit("by-hand", 1)
    assert status("a").state == "admitted"


RUBBISH = ["5", 5, ["limit"], {"limits": 5}, {"limit": -1}, {"limit": 1.5}, {"limit": True}, {"groups": {"a": "x"}}]


@pytest.mark.parametrize("rubbish", RUBBISH, ids=str)
def test_rubbish_from_the_function_is_told_and_the_rules_count(app, caplog, rubbish):
    app.configure(holder={"DEFAULT_LIMIT": 2, "LIMITS": FUNCTION})
    app.on_limits = lambda key: rubbish
    ask_for(count=5)
    assert semaphores.usage("acct-42").footprint == 2
    assert "InvalidLimit" in caplog.text


def test_a_function_that_raises_leaves_the_last_answer_in_force(app, caplog):
    app.configure(holder={"DEFAULT_LIMIT": 1, "LIMITS": FUNCTION})
    app.on_limits = lambda key: {"limit": 3}
    ask_for(count=1)

    def limits(key):
        raise ConnectionError("no directory server")

    app.on_limits = limits
    app.pass_time(minutes=10)
    ask_for(count=9)
    assert told("acct-42") == (3, "function")
    assert usage()["admitted"] == 3
    assert "no directory server" in caplog.text


def test_a_function_that_keeps_raising_is_logged_once_a_minute(app, caplog):
    app.configure(holder={"LIMITS": FUNCTION})
    app.on_limits = lambda key: 1 / 0
    for number in range(20):
        ask_for(f"key-{number}")
    complaints = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(complaints) == 1
    assert usage()["admitted"] == 20


def test_refresh_forgets_what_the_function_said_and_looks_at_what_waits(app):
    app.configure(holder={"LIMITS": FUNCTION})
    app.on_limits = lambda key: {"limit": 0}
    ask_for("acct-1")
    ask_for("acct-42")
    app.on_limits = lambda key: {"limit": 5}

    semaphores.refresh("acct-42")
    assert usage() == {"queued": 1, "claiming": 0, "admitted": 1}
    semaphores.refresh()
    assert usage() == {"queued": 0, "claiming": 0, "admitted": 2}


def test_without_the_setting_the_last_answers_count_no_more(app):
    app.configure(holder={"LIMITS": FUNCTION})
    app.on_limits = lambda key: {"limit": 5}
    ask_for()
    app.configure(holder={})
    assert told("acct-42") == (1, "default")


def test_changed_rules_are_felt_by_the_first_tick_of_a_process(app):
    app.configure(holder={"DEFAULT_LIMIT": 0})
    ask_for("acct-1")
    ask_for("acct-2", group="exports")
    app.tick()
    assert usage()["queued"] == 2

    app.configure(holder={"DEFAULT_LIMIT": 1})
    app.tick()
    assert usage() == {"queued": 0, "claiming": 0, "admitted": 2}


@pytest.mark.parametrize(
    "change",
    [
        {"DEFAULT_LIMIT": 2},
        {"RULES": {"b*": {"limit": 1}}},
        {"RULES": {"b*": {"limit": 1}, "a*": {"limit": 1}}},
        {"LIMITS": FUNCTION},
    ],
    ids=str,
)
def test_each_part_of_the_rules_is_noticed(app, change):
    from django_semq.holder.limits import digest

    app.configure(holder={"DEFAULT_LIMIT": 1, "RULES": {"a*": {"limit": 1}, "b*": {"limit": 1}}})
    before = digest()
    app.configure(holder={"DEFAULT_LIMIT": 1, "RULES": {"a*": {"limit": 1}, "b*": {"limit": 1}}, **change})
    assert digest() != before


def test_unchanged_rules_cost_no_write(app, django_assert_max_num_queries):
    app.configure(holder={"DEFAULT_LIMIT": 0})
    ask_for()
    app.tick()
    with django_assert_max_num_queries(6) as queries:
        app.tick()
    assert all(query["sql"].lstrip("( ").startswith(("SELECT", "WITH")) for query in queries)


def test_a_release_asks_the_function_again_when_its_answer_is_too_old(app):
    app.configure(holder={"LIMITS": FUNCTION})
    app.on_limits = lambda key: {"limit": 1}
    enqueue("acct-42", {}, id="a")
    enqueue("acct-42", {}, id="b")
    app.pass_time(minutes=5)
    app.on_limits = lambda key: {"limit": 2}
    enqueue("acct-42", {}, id="c")
    release("a")
    assert (status("b").state, status("c").state) == ("admitted", "admitted")
    assert app.limits_asked == ["acct-42", "acct-42"]
