from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection, connections
from django.test import Client
from django.urls import reverse

from django_semq import enqueue, semaphores, status
from django_semq.models import Ceiling, Semaphore
from tests import factories
from tests.admin.conftest import logged, messages_of

Fixture = Callable[..., Any]


@pytest.fixture
def semaphore(db: None) -> Semaphore:
    return factories.SemaphoreFactory()


def limit_of(key: str = "acct-42") -> tuple[int | None, str]:
    usage = semaphores.usage(key)
    return usage.limit, usage.source


@pytest.mark.parametrize(
    ("text", "limit", "message"),
    [
        ("5", 5, "Limit set to 5."),
        (" 5 ", 5, "Limit set to 5."),
        ("0", 0, "Limit set to 0."),
        ("2147483647", 2147483647, "Limit set to 2147483647."),
        ("none", None, "Limit set to unlimited."),
        ("None", None, "Limit set to unlimited."),
    ],
)
def test_set_limit_overrides_and_is_logged(
    operator: Client, act: Fixture, semaphore: Semaphore, text: str, limit: int | None, message: str
) -> None:
    response = act(operator, "set_limit", semaphore, limit=text)
    assert limit_of() == (limit, "override")
    assert messages_of(response) == [f"{message} (acct-42)"]
    assert logged() == [("acct-42", message)]


def test_reset_returns_to_the_base(operator: Client, act: Fixture, settings: Any, semaphore: Semaphore) -> None:
    settings.SEMQ = {"HOLDER": {"RULES": {"acct-*": {"limit": 7}}}}
    semaphores.set_limit("acct-42", 2)
    act(operator, "set_limit", semaphore, limit="reset")
    assert limit_of() == (7, "rule")
    assert logged() == [("acct-42", "Limit reset.")]


@pytest.mark.parametrize("text", ["-1", "1.5", "1e3", "true", "2147483648", "9" * 60, "9" * 5000, "٣", "five", "0x5"])
def test_a_bad_limit_is_refused_with_the_librarys_words_and_changes_nothing(
    operator: Client, act: Fixture, semaphore: Semaphore, text: str
) -> None:
    response = act(operator, "set_limit", semaphore, limit=text)
    (error,) = response.context["form"].errors["limit"]
    assert error.startswith("Limit is ")
    assert "give a whole number from 0" in error
    assert "give a whole number from 0" in response.text
    assert limit_of() == (1, "default")
    assert logged() == []


def test_an_empty_limit_is_refused(operator: Client, act: Fixture, semaphore: Semaphore) -> None:
    response = act(operator, "set_limit", semaphore, limit=" ")
    assert response.context["form"].errors["limit"] == ["This field is required."]
    assert limit_of() == (1, "default")


def test_a_refused_form_can_be_corrected(operator: Client, act: Fixture, semaphore: Semaphore) -> None:
    refused = act(operator, "set_limit", semaphore, limit="many")
    assert 'value="many"' in refused.text
    assert f'name="_selected_action" value="{semaphore.pk}"' in refused.text
    assert 'name="action" value="set_limit"' in refused.text


def test_a_raised_limit_admits_what_waits(operator: Client, act: Fixture, committed: Fixture) -> None:
    for id in ("first", "second"):
        committed(enqueue, "acct-42", None, id=id)
    assert status("second").state == "queued"
    act(operator, "set_limit", Semaphore.objects.get(), limit="2")
    assert status("second").state == "admitted"


def test_several_limits_are_set_at_once_and_logged_one_by_one(operator: Client, act: Fixture) -> None:
    rows = [factories.SemaphoreFactory(name=name) for name in ("a", "b", "c")]
    response = act(operator, "set_limit", *rows[:2], limit="4")
    assert [limit_of(row.name)[0] for row in rows] == [4, 4, 1]
    assert messages_of(response) == ["Limit set to 4. (a, b)"]
    assert logged() == [("a", "Limit set to 4."), ("b", "Limit set to 4.")]


def test_pause_and_resume(operator: Client, act: Fixture, committed: Fixture, semaphore: Semaphore) -> None:
    act(operator, "pause", semaphore)
    committed(enqueue, "acct-42", None, id="only")
    assert status("only").blocked == "paused"
    act(operator, "resume", semaphore)
    assert status("only").state == "admitted"
    assert logged() == [("acct-42", "Paused."), ("acct-42", "Resumed.")]


def test_the_ceiling_of_a_group_is_set_and_reset_at_its_semaphore(
    operator: Client, act: Fixture, semaphore: Semaphore
) -> None:
    act(operator, "set_ceiling", semaphore, group="exports ", limit="2")
    groups = semaphores.usage("acct-42").groups
    assert {name: group.ceiling for name, group in groups.items()} == {"exports ": 2}
    assert limit_of() == (1, "default")
    act(operator, "set_ceiling", semaphore, group="exports ", limit="reset")
    assert not Ceiling.objects.filter(has_override=True).exists()
    assert logged() == [
        ("acct-42", "Group “exports ”: Ceiling set to 2."),
        ("acct-42", "Group “exports ”: Ceiling reset."),
    ]


@pytest.mark.parametrize("fields", [{"group": "x", "limit": "-1"}, {"group": "x" * 256, "limit": "1"}])
def test_a_bad_ceiling_changes_nothing(
    operator: Client, act: Fixture, semaphore: Semaphore, fields: dict[str, str]
) -> None:
    response = act(operator, "set_ceiling", semaphore, **fields)
    assert response.context["form"].errors
    assert not Ceiling.objects.exists()
    assert logged() == []


def test_a_ceiling_has_a_page_of_its_own_to_change_and_pause_it(operator: Client, act: Fixture) -> None:
    row = factories.CeilingFactory(name="exports", footprint=1)

    def group() -> semaphores.GroupUsage:
        return semaphores.usage("acct-42").groups["exports"]

    act(operator, "set_ceiling", row, limit="3")
    assert group().ceiling == 3
    act(operator, "pause", row)
    assert group().paused
    assert not semaphores.usage("acct-42").paused
    act(operator, "resume", row)
    assert not group().paused
    assert logged() == [
        ("exports", "acct-42, group “exports”: Ceiling set to 3."),
        ("exports", "acct-42, group “exports”: Paused."),
        ("exports", "acct-42, group “exports”: Resumed."),
    ]


def test_the_question_for_ceilings_names_key_and_group(operator: Client) -> None:
    rows = [factories.CeilingFactory(name=name) for name in ("", "exports")]
    answer = {"action": "pause", "_selected_action": [row.pk for row in rows]}
    text = operator.post(reverse("admin:django_semq_ceiling_changelist"), answer).text
    assert "<li>acct-42, group “”</li>" in text
    assert "<li>acct-42, group “exports”</li>" in text


@pytest.mark.parametrize("action", ["set_limit", "set_ceiling", "pause", "resume"])
def test_without_the_change_permission_nothing_changes(
    client_with: Callable[..., Client], act: Fixture, action: str
) -> None:
    reader = client_with("view_semaphore", "view_ceiling", "change_item")
    row = factories.SemaphoreFactory(paused=action == "resume")
    before = Semaphore.objects.values().get()
    act(reader, action, row, limit="9", group="g")
    assert Semaphore.objects.values().get() == before
    assert not Ceiling.objects.exists()
    assert LogEntry.objects.count() == 0
    assert reader.get(reverse("admin:django_semq_semaphore_ask", args=[row.pk, action])).status_code == 403


def test_a_page_offers_to_pause_or_to_resume(operator: Client) -> None:
    offers = {}
    for paused in (True, False):
        row = factories.SemaphoreFactory(name=f"paused: {paused}", paused=paused)
        text = operator.get(reverse("admin:django_semq_semaphore_change", args=[row.pk])).text
        offers[paused] = [action for action in ("set_limit", "pause", "resume") if f"/ask/{action}/" in text]
    assert offers == {True: ["set_limit", "resume"], False: ["set_limit", "pause"]}


def test_after_a_change_of_one_row_its_page_follows(operator: Client, act: Fixture, semaphore: Semaphore) -> None:
    response = act(operator, "set_limit", semaphore, limit="5")
    assert response.redirect_chain == [(reverse("admin:django_semq_semaphore_change", args=[semaphore.pk]), 302)]


def test_a_semaphores_page_shows_its_usage(operator: Client, committed: Fixture, settings: Any) -> None:
    settings.SEMQ = {
        "QUEUES": {"default": {**settings.SEMQ["QUEUES"]["default"], "CLIENT_ID": "<shop>"}},
        "HOLDER": {"RULES": {"*": {"limit": 3, "groups": {"exports": 1}}}},
    }
    for n in range(4):
        committed(enqueue, "acct-42", None, group="exports" if n % 2 else "", id=f"order:{n}")
    semaphores.set_limit("acct-42", 1)
    factories.IssuedLeaseFactory(uid="lent", client__client_id="remote", permits=7, drawn=4, released=1)
    usage = semaphores.usage("acct-42")
    response = operator.get(reverse("admin:django_semq_semaphore_change", args=[Semaphore.objects.get().pk]))
    cells = " ".join(response.text.split())
    assert (usage.limit, usage.footprint, usage.headroom) == (1, 3, -2)
    assert "<td>1</td> <td>override</td> <td>3</td> <td>-2</td> <td>no</td>" in cells
    assert "<td>exports</td> <td>1</td> <td>1</td> <td>0</td> <td>no</td>" in cells
    assert len(usage.issued) == 4
    for issued in usage.issued:
        assert f"{issued.kind} {issued.id}</td> <td>{issued.permits}</td><td>{issued.in_use}</td>" in cells
    assert "<td>&lt;shop&gt;</td>" in cells
    assert "<td>remote</td><td>-</td><td>lease lent</td> <td>7</td><td>3</td>" in cells


def test_a_list_of_semaphores_shows_limit_source_and_headroom(operator: Client) -> None:
    factories.SemaphoreFactory(name="a", has_override=True, override=None, footprint=3)
    factories.SemaphoreFactory(name="b", footprint=3)
    cells = operator.get(reverse("admin:django_semq_semaphore_changelist")).text
    assert 'field-limit">unlimited<' in cells
    assert 'field-source">override<' in cells
    assert 'field-limit">1<' in cells
    assert 'field-source">default<' in cells
    assert 'field-headroom">-2<' in cells


def test_a_ceiling_whose_row_goes_with_its_reset_leads_back_to_the_list(operator: Client, act: Fixture) -> None:
    row = factories.CeilingFactory(overridden=True)
    response = act(operator, "set_ceiling", row, limit="reset")
    assert response.redirect_chain == [(reverse("admin:django_semq_ceiling_changelist"), 302)]
    assert messages_of(response) == ["Ceiling reset. (acct-42, group “exports”)"]
    assert not Ceiling.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_each_row_is_changed_and_committed_by_itself_where_requests_are_atomic(
    operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)
    set_limit, was_open = semaphores.set_limit, []

    def watched(*args: Any) -> None:
        was_open.append(connection.in_atomic_block)
        set_limit(*args)

    monkeypatch.setattr(semaphores, "set_limit", watched)
    rows = [factories.SemaphoreFactory(name=name) for name in ("a", "b")]
    answer = {"action": "set_limit", "_selected_action": [row.pk for row in rows], "confirmed": "yes", "limit": "5"}
    operator.post(reverse("admin:django_semq_semaphore_changelist"), answer)
    assert was_open == [False, False]
    assert [limit_of(name) for name in ("a", "b")] == [(5, "override")] * 2
