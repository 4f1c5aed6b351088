"""What a key, group or id may be: any Unicode text of at most 255 characters without NUL. And how what is wrong is
shown."""

from __future__ import annotations

MAX_LENGTH = 255


def name_problem(value: object, *, blank: bool = False) -> str | None:
    """What is wrong with a name and what to give instead, or None if it is fine."""
    if not isinstance(value, str):
        return "give a text"
    if not value and not blank:
        return "give a text that is not empty"
    if len(value) > MAX_LENGTH:
        return f"it has {len(value)} characters; give at most {MAX_LENGTH}"
    if "\0" in value:
        return "it has a NUL character; leave it out"
    try:
        value.encode()
    except UnicodeEncodeError:
        return "it has half of a surrogate pair; give well-formed Unicode"
    return None


def shown(value: object) -> str:
    """The first 50 characters of a value, for an error text."""
    try:
        text = repr(value)
    except Exception:  # Too deep or too many digits for Python to print, or a broken __repr__.
        text = f"a {type(value).__name__}"
    return text if len(text) <= 50 else text[:50] + "…"
