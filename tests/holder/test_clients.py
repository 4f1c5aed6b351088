"""Identities of other services, and the command that makes them."""

import io

import pytest
from django.core.management import call_command

from django_semq import clock
from django_semq.exceptions import InvalidClient, UnknownClient
from django_semq.holder import clients
from django_semq.models import Client

pytestmark = pytest.mark.django_db(transaction=True)


def run(*args: str) -> list[str]:
    out = io.StringIO()
    call_command("semq_client", *args, stdout=out)
    return out.getvalue().splitlines()


def test_a_token_is_shown_once_and_stored_as_its_hash():
    token = clients.add("shop")
    assert token not in {str(value) for value in Client.objects.values().get().values()}
    assert clients.by_token(token).client_id == "shop"
    assert clients.by_token(token + "x") is None


@pytest.mark.parametrize("name", ["", "x" * 256, "a\0b", None])
def test_a_name_that_is_none_is_refused(name):
    with pytest.raises(InvalidClient):
        clients.add(name)
    assert not Client.objects.exists()


def test_a_name_is_given_once():
    token = clients.add("shop")
    with pytest.raises(InvalidClient, match="rotate its token"):
        clients.add("shop")
    assert clients.by_token(token) is not None


@pytest.mark.parametrize("verb", [clients.rotate, clients.readmit, lambda name: clients.evict(name, now=clock.now())])
def test_verbs_for_nobody_say_so(verb):
    with pytest.raises(UnknownClient, match="there is no client 'shop'"):
        verb("shop")


def test_the_command_prints_the_token_alone_on_the_last_line():
    token = run("add", "shop", "--keys", "acct-*", "--keys", "pool")[-1]
    assert clients.by_token(token).patterns == "acct-*\npool"
    other = run("rotate", "shop")[-1]
    assert clients.by_token(token) is None
    assert clients.by_token(other).client_id == "shop"


def test_the_command_lists_and_evicts_and_readmits():
    clients.add("shop", patterns="acct-*")
    Client.objects.create(client_id="default", queue="default")
    assert run("list") == ["default: queue default of this project", "shop: never heard, keys acct-*"]
    assert run("evict", "shop") == ["shop: evicted, 0 permits are free"]
    assert "evicted" in run("list")[1]
    assert run("readmit", "shop") == ["shop: may speak again"]
    assert run("list")[1] == "shop: never heard, keys acct-*"


def test_the_command_ends_with_2_for_what_it_cannot_do(capsys):
    with pytest.raises(SystemExit) as ended:
        run("rotate", "nobody")
    assert ended.value.code == 2
