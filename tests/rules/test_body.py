"""What a body may be: JSON that comes back as it was given, and nothing else."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from django_semq import InvalidItem
from django_semq.queue.items import encode_body

MIB = 2**20


def encode(body: object, max_bytes: int = MIB) -> str:
    return encode_body(body, max_bytes)


def nested(depth: int) -> object:
    body: object = "innermost"
    for _level in range(depth):
        body = [body]
    return body


well_formed = st.text(st.characters(exclude_categories=["Cs"]))
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | well_formed,
    lambda inner: st.lists(inner) | st.dictionaries(well_formed, inner),
    max_leaves=20,
)


@settings(deadline=None)
@given(json_values)
def test_a_json_value_comes_back_as_it_was_given(body):
    assert json.loads(encode(body)) == body


def test_a_tuple_comes_back_as_a_list():
    assert json.loads(encode({"pair": (1, (2, 3))})) == {"pair": [1, [2, 3]]}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (float("nan"), "a number that JSON cannot hold"),
        ({"x": [float("inf")]}, "a number that JSON cannot hold"),
        ([-float("inf")], "a number that JSON cannot hold"),
        (datetime(2026, 1, 5, tzinfo=UTC), "a datetime, which JSON has not"),
        ([date(2026, 1, 5)], "a date, which JSON has not"),
        ({"price": Decimal("1.10")}, "a Decimal, which JSON has not"),
        ({"raw": b"bytes"}, "a bytes, which JSON has not"),
        ({"ids": {1, 2}}, "a set, which JSON has not"),
        (UUID(int=0), "a UUID, which JSON has not"),
        (object(), "a object, which JSON has not"),
        ({"text": "half \ud800"}, "half of a surrogate pair"),
        ({"half \udc00": 1}, "half of a surrogate pair"),
        ({1: "one"}, "the key 1; keys of JSON objects are text"),
        ([{None: "none"}], "the key None; keys of JSON objects are text"),
        ({("a", "b"): 1}, "keys of JSON objects are text"),
        (nested(101), "nested deeper than 100 levels; flatten it"),
    ],
)
def test_what_json_would_change_or_cannot_hold_is_refused_with_the_reason(body, reason):
    with pytest.raises(InvalidItem) as refused:
        encode(body)
    assert reason in str(refused.value)
    assert str(refused.value).startswith("body is ")
    assert refused.value.field == "body"


def test_a_hundred_levels_are_taken():
    assert json.loads(encode(nested(100))) == nested(100)


@pytest.mark.parametrize("body", [nested(100_000), 10**5000, [10**5000]], ids=["depth", "digits", "inner digits"])
def test_a_body_that_python_itself_cannot_print_is_refused_like_any_other(body):
    with pytest.raises(InvalidItem, match=r"^body is "):
        encode(body)


def test_a_body_inside_itself_is_refused():
    body: list[object] = []
    body.append(body)
    with pytest.raises(InvalidItem, match="nested deeper"):
        encode(body)


def test_the_size_is_counted_in_bytes_of_utf_8():
    """(B83)"""
    assert encode("é" * 49, max_bytes=100) == '"' + "é" * 49 + '"'
    with pytest.raises(InvalidItem, match="it has 102 bytes of JSON, MAX_BODY_BYTES is 100; store it elsewhere"):
        encode("é" * 50, max_bytes=100)


def test_the_error_names_the_place_in_the_list():
    with pytest.raises(InvalidItem, match=r"^item 3: body is ") as refused:
        encode_body(b"", MIB, index=3)
    assert refused.value.index == 3
