"""The library with one rule less: for tests that show that the rule is missed."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any


@contextmanager
def rewritten(function: FunctionType, old: str, new: str = "pass") -> Iterator[None]:
    """Inside, the function's source has `new` in place of `old`, which must occur in it once."""
    lines, start = inspect.getsourcelines(function)
    source = "".join(lines)
    if source.count(old) != 1:
        raise LookupError(f"{function.__qualname__} has {old!r} {source.count(old)} times; write this test anew")
    file = Path(inspect.getsourcefile(function) or "")
    before = file.read_text().splitlines(keepends=True)
    text = "".join([*before[: start - 1], source.replace(old, new), *before[start - 1 + len(lines) :]])
    original = function.__code__
    function.__code__ = _code_of(compile(text, file, "exec"), function.__qualname__)
    try:
        yield
    finally:
        function.__code__ = original


def _code_of(code: CodeType, name: str) -> CodeType:
    found: list[Any] = [code]
    for inner in found:
        if inner.co_qualname == name:
            return inner
        found += [constant for constant in inner.co_consts if isinstance(constant, CodeType)]
    raise LookupError(name)
