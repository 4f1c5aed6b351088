import pytest
from django.contrib.auth.models import Group

from tests.processes import kill9

pytestmark = pytest.mark.processes


@pytest.mark.django_db(transaction=True)
def test_a_child_process_is_on_the_database_of_the_test(spawn):
    Group.objects.create(name="parent")
    child = spawn("""
        from django.contrib.auth.models import Group
        print("found", Group.objects.get().name)
        Group.objects.create(name=input())
        print("created")
    """)
    child.wait_for_line("found parent")
    child.tell("child")

    assert child.finish() == ["found parent", "created"]
    assert Group.objects.filter(name="child").exists()


@pytest.mark.django_db(transaction=True)
def test_a_child_process_can_be_a_management_command(spawn):
    child = spawn("django", "showmigrations", "django_semq", "--plan")

    assert any("[X]  django_semq.0001" in line for line in child.finish())


def test_a_killed_process_does_not_get_to_say_goodbye(spawn):
    child = spawn("""
        try:
            print("ready")
            input()
        finally:
            print("goodbye")
    """)
    child.wait_for_line("ready")
    kill9(child)
    child.clear_away()

    assert child.lines == ["ready"]


def test_a_process_that_fails_shows_what_it_printed(spawn):
    child = spawn("print('so far'); raise SystemExit('and no further')")

    with pytest.raises(AssertionError, match="and no further"):
        child.wait_for_line("ready")
    with pytest.raises(AssertionError, match="so far"):
        child.finish()
