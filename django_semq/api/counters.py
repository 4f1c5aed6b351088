"""What the items of a key do: the pump's counters and what it has not folded into them yet, in one statement.

Without the latter the numbers would be wrong just when somebody looks at them: while a key is set aside.
"""

from __future__ import annotations

from typing import Any

from django.db.models import IntegerField, OuterRef, QuerySet, Subquery, Sum, Value
from django.db.models.functions import Coalesce

from django_semq.models import Key, KeyGroup, Nudge


def with_totals(keys: QuerySet[Key]) -> QuerySet[Key]:
    """Keys with `queued`, `claiming`, `admitted` over all groups, and `blocked`: the oldest reason."""
    groups = KeyGroup.objects.filter(key=OuterRef("pk"))
    nudges = Nudge.objects.filter(queue=OuterRef("queue"), key=OuterRef("name"))

    def total(rows: QuerySet[Any], by: str, column: str) -> Coalesce:
        sums = rows.order_by().values(by).annotate(total=Sum(column)).values("total")
        return Coalesce(Subquery(sums), 0, output_field=IntegerField())

    return keys.annotate(
        queued=total(groups, "key", "queued") + total(nudges, "key", "queued_delta"),
        claiming=total(groups, "key", "claiming"),
        admitted=total(groups, "key", "admitted") - total(nudges, "key", "returned"),
        blocked=Subquery(groups.exclude(blocked_reason="").order_by("blocked_at", "pk").values("blocked_reason")[:1]),
    )


def groups_of(key: Key) -> list[dict[str, Any]]:
    """Each group of a key that has something: its counters and why its items wait."""
    folded = key.groups.values_list("name", "queued", "claiming", "admitted", "blocked_reason")
    unfolded = (
        Nudge.objects.filter(queue=key.queue, key=key.name)
        .values("group")
        .annotate(queued=Sum("queued_delta"), claiming=Value(0), admitted=-Sum("returned"), reason=Value(""))
        .values_list("group", "queued", "claiming", "admitted", "reason")
    )
    groups: dict[str, dict[str, Any]] = {}
    for name, queued, claiming, admitted, reason in folded.union(unfolded, all=True):
        group = groups.setdefault(name, {"name": name, "queued": 0, "claiming": 0, "admitted": 0, "blocked": None})
        group["queued"] += int(queued)
        group["claiming"] += int(claiming)
        group["admitted"] += int(admitted)
        group["blocked"] = reason or group["blocked"]
    return [groups[name] for name in sorted(groups)]
