"""Where a process can die with a difference: read from the running code, so that no new place is forgotten.

A place is a function of the library that starts a transaction (`locking.run`) or joins one (`locking.join`), or a
message or a call of the application.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from types import FrameType

import django_semq

PACKAGE = Path(django_semq.__file__).parent
OPENERS = {"run", "join"}

BEFORE, AFTER = "before", "after"
"""Of a transaction: before its commit, and after it, when its hooks have not run."""

CALLER = "caller"
CALLS = ("conversation", "admit", "finished", "limits", "message", CALLER)
"""What is no transaction of the library: the inline holder's part of one, the application's functions, a peer's
message and its reply, and a transaction of the application itself."""

OUT_OF_REACH = {
    "admin.queue": "the admin's requests join the verbs that the world calls itself",
    "api.views": "the API's requests join the verbs that the world calls itself",
    "holder.clients": "an operator's words about identities, of which each peer here has one for good",
    "driver.djangoq": "starts tasks of django-q2, of which there are none here",
    "queue.admission.take_lost": "asks after tasks of django-q2, of which there are none here",
    "locking.join": "is the same transaction as its caller's, which is in the list",
}
"""Modules or functions that the world does not come to, and why."""


@cache
def places() -> set[str]:
    """All functions of the library that open or join a transaction."""
    return {place for path in sorted(PACKAGE.rglob("*.py")) for place in _places_in(path)}


def reachable_places() -> set[str]:
    return {place for place in places() if not any(place.startswith(start) for start in OUT_OF_REACH)}


def place_of(frame: FrameType) -> str:
    """The name of the function that this frame runs, as `places` names it."""
    _package, _dot, module = frame.f_globals["__name__"].partition(".")
    return f"{module}.{frame.f_code.co_qualname.partition('.<locals>')[0]}"


def _places_in(path: Path) -> set[str]:
    module = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
    tree = ast.parse(path.read_text())
    imported = {
        name.asname or name.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "django_semq.locking"
        for name in node.names
        if name.name in OPENERS
    }
    if module == "locking":
        imported = OPENERS
    return {f"{module}.{function}" for function in _callers(tree, imported)}


def _callers(node: ast.AST, openers: set[str], name: str = "", in_function: bool = False) -> set[str]:
    """Qualified names of the functions below this node that call an opener; inner functions count as their outer."""
    found = set()
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Call) and _is_opener(child.func, openers):
            found.add(name)
        if isinstance(child, (ast.FunctionDef, ast.ClassDef)) and not in_function:
            inner = f"{name}.{child.name}".strip(".")
            found |= _callers(child, openers, inner, isinstance(child, ast.FunctionDef))
        else:
            found |= _callers(child, openers, name, in_function)
    return found


def _is_opener(function: ast.expr, openers: set[str]) -> bool:
    if isinstance(function, ast.Attribute):
        is_ours = isinstance(function.value, ast.Name) and function.value.id == "locking"
        return is_ours and function.attr in OPENERS
    return isinstance(function, ast.Name) and function.id in openers
