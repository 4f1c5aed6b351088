"""What a key, a group or an id may be."""

import pytest

from django_semq.protocol.names import name_problem


@pytest.mark.parametrize("name", ["a", " a ", "é", "🦀", "a/b", "x" * 255, "🦀" * 255, "line\nbreak"])
def test_any_text_of_at_most_255_characters_is_a_name(name):
    assert name_problem(name) is None


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        (None, "give a text"),
        (5, "give a text"),
        (b"bytes", "give a text"),
        ("", "give a text that is not empty"),
        ("x" * 256, "it has 256 characters; give at most 255"),
        ("a\0b", "it has a NUL character; leave it out"),
        ("\ud800", "it has half of a surrogate pair; give well-formed Unicode"),
    ],
)
def test_the_problem_says_what_to_give_instead(name, problem):
    assert name_problem(name) == problem


def test_only_a_group_may_be_empty():
    assert name_problem("", blank=True) is None
    assert name_problem(None, blank=True) == "give a text"
