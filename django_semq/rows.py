"""Reads and inserts whose SQL is made once, for the statements that every item's way goes through.

Building and compiling a query takes the ORM longer than the database takes to answer it, and it does so for each
call anew. Here the text is kept for each shape and number of values. What is on nobody's way asks the ORM.

On PostgreSQL many values go as one array: psycopg looks for the marks in a long text anew at each call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import cache, lru_cache
from typing import Any, TypeVar
from uuid import UUID

from django.db import connections, models, router
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models.constants import OnConflict

T = TypeVar("T")
M = TypeVar("M", bound=models.Model)

_INSTANT = models.Value(None, models.DateTimeField())

CHUNK = 500
"""Values in one IN list or insert: SQLite before 3.32 takes 999 variables, and plans of long lists are slow."""


def alias_of(model: type[models.Model]) -> str:
    """The database that a model is written to: a replica's answer is too old to decide anything with."""
    return router.db_for_write(model)


def chunks(values: Sequence[T], size: int = CHUNK) -> Iterator[Sequence[T]]:
    return (values[start : start + size] for start in range(0, len(values), size))


def query(model: type[M], sql: str, *values: object) -> list[M]:
    """The rows of a SELECT, whose other columns become attributes.

    In all SQL that is given here, `{name}` is a name to be quoted and `%s` a value, after `IN` a list of values.
    """
    sql, flat = _filled(model, sql, values)
    return list(model._default_manager.raw(sql, flat))


def select(
    model: type[M], condition: str, *values: object, fields: Sequence[str] | None = None, index: str = ""
) -> list[M]:
    """The rows that fulfil a condition, with all their fields, or with the id and these.

    What may follow a condition (ORDER BY, LIMIT, FOR UPDATE) is part of it. MySQL and MariaDB go by the index, if one
    is named.
    """
    using = alias_of(model)
    columns = _columns(model, None if fields is None else ("id", *fields))
    sql, flat = _filled(model, _select_text(using, model, columns, condition, index), values)
    with connections[using].cursor() as cursor:
        cursor.execute(sql, flat)
        found = cursor.fetchall()
    return _made(model, columns, found)


def select_tuples(
    model: type[models.Model], columns: Sequence[str], condition: str, *values: object
) -> list[tuple[Any, ...]]:
    """As `select`, but columns of whole numbers and text only, without making objects of the rows."""
    sql, flat = _filled(model, _select_text(alias_of(model), model, tuple(columns), condition, ""), values)
    with connections[alias_of(model)].cursor() as cursor:
        cursor.execute(sql, flat)
        return list(cursor.fetchall())


def by_index(using: str, name: str) -> str:
    """What follows a table's name so that MySQL and MariaDB go by this index, if one is named. With what they know
    of a small table they would scan one that has grown since: with a row lock on whatever they pass."""
    return f"FORCE INDEX ({name})" if name and connections[using].vendor == "mysql" else ""


def execute(model: type[models.Model], sql: str, *values: object) -> int:
    """Run a statement that changes rows; returns their number."""
    sql, flat = _filled(model, sql, values)
    with connections[alias_of(model)].cursor() as cursor:
        cursor.execute(sql, flat)
        return int(cursor.rowcount)


def update_each(model: type[models.Model], column: str, of: Mapping[int, int], others: str, *values: object) -> None:
    """Give a column of each of these rows (id -> number) a value of its own, and others the same in all: `others` is
    what SET says of them. Told by numbers, for which row is which a subquery would find by a plan, and the plan by
    what is known of tables that a moment ago were empty."""
    connection = connections[alias_of(model)]
    table, column = connection.ops.quote_name(model._meta.db_table), connection.ops.quote_name(column)
    others, flat = _filled(model, others, values)
    with connection.cursor() as cursor:
        for part in chunks(sorted(of.items())):
            if connection.vendor == "postgresql":
                source = "unnest(%s::bigint[], %s::bigint[]) d(id, value)"
                sql = f"UPDATE {table} SET {column} = d.value, {others} FROM {source} WHERE {table}.id = d.id"
                cursor.execute(sql, [*flat, [pk for pk, _value in part], [value for _pk, value in part]])
            else:
                # In the text: SQLite before 3.32 takes 999 values.
                cases = " ".join(f"WHEN {pk:d} THEN {value:d}" for pk, value in part)
                ids = ", ".join(f"{pk:d}" for pk, _value in part)
                sql = f"UPDATE {table} SET {column} = CASE id {cases} END, {others} WHERE id IN ({ids})"
                cursor.execute(sql, flat)


def as_datetime(model: type[models.Model], value: Any) -> datetime:
    """An instant as the database gives it in a column that is no field."""
    connection = connections[alias_of(model)]
    for convert in connection.ops.get_db_converters(_INSTANT):
        value = convert(value, _INSTANT, connection)
    return value  # type: ignore[no-any-return]


def insert(model: type[M], rows: Sequence[M]) -> None:
    """Insert rows, in this order. Their ids stay unknown."""
    _insert(model, rows, has_id=False)


def write_back(model: type[M], rows: Sequence[M], fields: Sequence[str], unique: Sequence[str] = ("id",)) -> None:
    """Write different values to many rows that this transaction owns, missing rows included, in one statement:
    an upsert, where `bulk_update` would build a CASE for each row and column. `unique` names the columns that
    tell the row; without the id among them, rows with and without an id go into the same statement."""
    _insert(model, rows, has_id="id" in unique, changes=tuple(fields), unique=tuple(unique))


# --------------------------------------------------------------------------------------------------------- internals


def _insert(
    model: type[M], rows: Sequence[M], *, has_id: bool, changes: tuple[str, ...] = (), unique: tuple[str, ...] = ()
) -> None:
    if not rows:
        return
    connection = connections[alias_of(model)]
    fields = [field for field in model._meta.concrete_fields if has_id or not field.primary_key]
    size = min(CHUNK, connection.ops.bulk_batch_size(fields, rows))
    for part in chunks(rows, size):
        values = [[field.get_db_prep_save(getattr(row, field.attname), connection) for row in part] for field in fields]
        is_array = connection.vendor == "postgresql"
        sql = _insert_text(connection.alias, model, 1 if is_array else len(part), has_id, changes, unique)
        with connection.cursor() as cursor:
            cursor.execute(sql, values if is_array else [value for row in zip(*values, strict=True) for value in row])


def _filled(model: type[models.Model], sql: str, values: Sequence[object]) -> tuple[str, list[Any]]:
    """SQL in this database's words, and the values for its marks as it takes them."""
    connection = connections[alias_of(model)]
    lengths: list[int | None] = []
    flat: list[Any] = []
    for value in values:
        if isinstance(value, (list, tuple)) and connection.vendor != "postgresql":
            lengths.append(len(value))
            flat += value
            continue
        if isinstance(value, datetime):
            value = connection.ops.adapt_datetimefield_value(value)
        elif isinstance(value, UUID) and not connection.features.has_native_uuid_field:
            value = value.hex
        lengths.append(None)
        flat.append(value)
    return _text(connection.alias, sql, tuple(lengths)), flat


@lru_cache(maxsize=1024)
def _text(using: str, sql: str, lengths: tuple[int | None, ...]) -> str:
    if connections[using].vendor == "postgresql":
        sql = sql.replace(" NOT IN %s", " <> ALL(%s)").replace(" IN %s", " = ANY(%s)")
    marks = tuple("%s" if length is None else f"({', '.join(['%s'] * length)})" for length in lengths)
    return sql.format_map(_Quoted(connections[using])) % marks


class _Quoted(dict[str, str]):
    """Quotes whatever name is asked for: `key` and `group` are words of SQL."""

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        self.connection = connection

    def __missing__(self, name: str) -> str:
        return str(self.connection.ops.quote_name(name))


@cache
def _columns(model: type[models.Model], among: tuple[str, ...] | None = None) -> tuple[str, ...]:
    """Columns in the order in which `from_db` takes their values."""
    columns = [str(field.column) for field in model._meta.concrete_fields]
    return tuple(column for column in columns if among is None or column in among)


def _made(model: type[M], columns: tuple[str, ...], rows: Sequence[tuple[Any, ...]]) -> list[M]:
    """Objects of rows, with what some databases store differently made right."""
    connection = connections[alias_of(model)]
    to_convert = [
        (at, expression, connection.ops.get_db_converters(expression))
        for at, expression in _converted(connection.alias, model, columns)
    ]
    made = []
    for row in rows:
        values = list(row)
        for at, expression, converters in to_convert:
            for convert in converters:
                values[at] = convert(values[at], expression, connection)
        made.append(model.from_db(connection.alias, columns, values))
    return made


@cache
def _converted(using: str, model: type[models.Model], columns: tuple[str, ...]) -> list[tuple[int, Any]]:
    """Positions of the columns that this database gives in a form of its own."""
    ops = connections[using].ops
    fields = [field for field in model._meta.concrete_fields if field.column in columns]
    expressions = [field.get_col(model._meta.db_table) for field in fields]
    return [(at, expression) for at, expression in enumerate(expressions) if ops.get_db_converters(expression)]


@lru_cache(maxsize=1024)
def _select_text(using: str, model: type[models.Model], columns: tuple[str, ...], condition: str, index: str) -> str:
    shown = ", ".join(f"{{{column}}}" for column in columns)
    return f"SELECT {shown} FROM {{{model._meta.db_table}}} {by_index(using, index)} WHERE {condition}"


@lru_cache(maxsize=1024)
def _insert_text(
    using: str,
    model: type[models.Model],
    rows: int,
    has_id: bool,
    changes: tuple[str, ...],
    unique: tuple[str, ...],
) -> str:
    connection = connections[using]
    ops = connection.ops
    fields = [field for field in model._meta.concrete_fields if has_id or not field.primary_key]
    columns = ", ".join(ops.quote_name(str(field.column)) for field in fields)
    if connection.vendor == "postgresql":
        # As `text`, for a cast to varchar(n) cuts what is too long, where an insert refuses it.
        types = [str(field.db_type(connection)) for field in fields]
        arrays = ", ".join(f"%s::{'text' if 'char' in name else name}[]" for name in types)
        source = f"SELECT * FROM unnest({arrays})"
    else:
        source = "VALUES " + ", ".join([f"({', '.join(['%s'] * len(fields))})"] * rows)
    text = f"INSERT INTO {ops.quote_name(model._meta.db_table)} ({columns}) {source}"
    if changes:
        of = {field.name: field.column for field in model._meta.concrete_fields}
        text += " " + ops.on_conflict_suffix_sql(
            fields, OnConflict.UPDATE, [of[name] for name in changes], [of[name] for name in unique]
        )
    return text
