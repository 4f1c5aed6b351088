"""What all tables share: text that compares exactly, and reading where we write."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db import models, router
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import QuerySet
from django.db.models.expressions import Combinable

if TYPE_CHECKING:
    _Text = models.CharField[str | Combinable, str]
else:
    _Text = models.CharField


class NameField(_Text):
    """Text that differs by case, accent or trailing space is different on every database, and sorts by code point.

    PostgreSQL's "C" and SQLite's BINARY do so by nature. MySQL and MariaDB compare case-insensitively by
    default, and their `utf8mb4_bin` pads: it takes 'a' and 'a ' for equal. Their no-pad collations do not,
    and have different names.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("max_length", 255)
        super().__init__(*args, **kwargs)

    def db_parameters(self, connection: BaseDatabaseWrapper) -> Any:
        parameters = super().db_parameters(connection)
        if connection.vendor == "postgresql":
            parameters["collation"] = "C"
        elif connection.vendor == "mysql":
            is_mariadb = connection.mysql_is_mariadb  # type: ignore[attr-defined]
            parameters["collation"] = "utf8mb4_nopad_bin" if is_mariadb else "utf8mb4_0900_bin"
        return parameters


class WriteManager(models.Manager[Any]):
    """Reads on the alias that is written: a replica's answer is too old to decide anything with."""

    def get_queryset(self) -> QuerySet[Any]:
        return super().get_queryset().using(router.db_for_write(self.model))


class Table(models.Model):
    objects = WriteManager()

    class Meta:
        abstract = True
