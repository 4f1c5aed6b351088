"""The client's tables: what waits, what it holds, and what callers want the pump to know.

Callers write items and nudges, each a row of their own. All other rows are written by the pump alone, under
the lock of their key. Items and nudges name grants and leases by plain id, without a foreign key: its check
would take a shared lock on a row that the pump updates.
"""

from __future__ import annotations

from django.db import models
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _

from django_semq.models.base import NameField, Table


class State(models.IntegerChoices):
    """`queued` → `claiming` → `admitted` → gone; a refused claim goes back to `queued`, at its old place."""

    QUEUED = 0, _("queued")
    CLAIMING = 1, _("claiming")
    ADMITTED = 2, _("admitted")


class Item(Table):
    """One thing that waits for a permit. Its row id is its place in the arrival order."""

    id = models.BigAutoField(primary_key=True)
    uid = NameField(_("id"), help_text=_("The caller's id, unique in its queue while the row exists."))
    queue = NameField(max_length=64, help_text=_("Alias of the queue in SEMQ['QUEUES']."))
    key = NameField(help_text=_("Name of the semaphore."))
    group = NameField(blank=True, default="", help_text=_("Part of the key with a ceiling of its own."))
    body = models.TextField(help_text=_("JSON text."))
    state = models.SmallIntegerField(choices=State, default=State.QUEUED)
    handed_over = models.BooleanField(default=False, help_text=_("admit() has returned for it."))
    started = models.BooleanField(default=False, help_text=_("Its task runs (async_task only)."))
    grant_id = models.BigIntegerField(null=True, blank=True, help_text=_("Grant that its permit is of."))
    lease_id = models.BigIntegerField(null=True, blank=True, help_text=_("Lease that its permit is of."))
    enqueued_at = models.DateTimeField()
    admitted_at = models.DateTimeField(null=True, blank=True)
    due_at = models.DateTimeField(
        null=True, blank=True, help_text=_("When the driver looks at it next; empty: never by itself.")
    )
    attempt = models.IntegerField(default=0, help_text=_("Hand-overs begun so far."))
    last_error = models.TextField(blank=True, default="", help_text=_("Why the last hand-over failed."))
    batch = models.UUIDField(null=True, blank=True, help_text=_("Marks the rows that one insert made."))

    class Meta:
        verbose_name = _("item")
        verbose_name_plural = _("items")
        constraints = [models.UniqueConstraint(fields=["queue", "uid"], name="semq_item_uid")]
        indexes = [
            models.Index(fields=["queue", "key", "group", "state", "id"], name="semq_item_oldest"),
            models.Index(fields=["grant_id", "state", "id"], name="semq_item_grant"),
            models.Index(fields=["queue", "state", "handed_over", "due_at", "id"], name="semq_item_due"),
        ]

    def __str__(self) -> str:
        return self.uid


class Key(Table):
    """This client's view of one semaphore, and the lock under which its permits are counted."""

    id = models.BigAutoField(primary_key=True)
    queue = NameField(max_length=64)
    name = NameField()
    request_seq = models.BigIntegerField(default=0, help_text=_("Number of the newest request."))
    applied_seq = models.BigIntegerField(default=0, help_text=_("Number of the last request whose reply counts."))
    request_until = models.DateTimeField(null=True, blank=True, help_text=_("A reply after this is dropped."))
    request_attempt = models.IntegerField(default=0)
    next_request_at = models.DateTimeField(null=True, blank=True, help_text=_("The holder's pacing."))
    report_due_at = models.DateTimeField(null=True, blank=True)
    report_attempt = models.IntegerField(default=0)
    set_aside_until = models.DateTimeField(null=True, blank=True, help_text=_("Left out until then: see error."))
    set_aside_count = models.IntegerField(default=0, help_text=_("Failures in a row."))
    error = models.TextField(blank=True, default="", help_text=_("Why it was set aside."))
    due_at = models.DateTimeField(null=True, blank=True, help_text=_("When the driver looks at it next."))

    class Meta:
        verbose_name = _("key")
        verbose_name_plural = _("keys")
        constraints = [models.UniqueConstraint(fields=["queue", "name"], name="semq_key_name")]
        indexes = [models.Index(fields=["queue", "due_at"], name="semq_key_due")]

    def __str__(self) -> str:
        return self.name


class KeyGroup(Table):
    """How many items of one group wait, claim and hold a permit. A row exists only while it counts something.

    The counters are exact sums of folded nudges. They are signed: what is not folded yet may belong before.
    """

    id = models.BigAutoField(primary_key=True)
    key = models.ForeignKey(Key, models.CASCADE, related_name="groups")
    name = NameField(blank=True)
    queued = models.BigIntegerField(default=0)
    claiming = models.BigIntegerField(default=0)
    admitted = models.BigIntegerField(default=0)
    blocked_reason = models.CharField(max_length=32, blank=True, default="", help_text=_("Why its items wait."))
    blocked_at = models.DateTimeField(null=True, blank=True, help_text=_("Since when for this reason."))

    class Meta:
        verbose_name = _("group")
        verbose_name_plural = _("groups")
        constraints = [models.UniqueConstraint(fields=["key", "name"], name="semq_group_name")]

    def __str__(self) -> str:
        return self.name or str(_("(no group)"))


class Grant(Table):
    """Permits given once, as this client knows them; deleted when closed, all released and acknowledged."""

    id = models.BigAutoField(primary_key=True)
    uid = models.CharField(max_length=64, help_text=_("The holder's id of it."))
    key = models.ForeignKey(Key, models.CASCADE, related_name="grants")
    group = NameField(blank=True)
    permits = models.IntegerField()
    claimed = models.IntegerField(default=0)
    confirmed = models.IntegerField(default=0)
    admitted = models.IntegerField(default=0)
    released = models.IntegerField(default=0)
    claim_until = models.DateTimeField(null=True, blank=True)
    closed = models.BooleanField(default=False, help_text=_("Nothing more will be claimed of it."))
    acked_claimed = models.IntegerField(default=0)
    acked_released = models.IntegerField(default=0)
    acked_closed = models.BooleanField(default=False)
    created_at = models.DateTimeField()

    class Meta:
        verbose_name = _("grant")
        verbose_name_plural = _("grants")
        constraints = [
            models.UniqueConstraint(fields=["uid"], name="semq_grant_uid"),
            models.CheckConstraint(
                name="semq_grant_chain",
                condition=Q(released__gte=0)
                & Q(admitted__gte=F("released"))
                & Q(confirmed__gte=F("admitted"))
                & Q(claimed__gte=F("confirmed"))
                & Q(permits__gte=F("claimed")),
            ),
        ]
        indexes = [models.Index(fields=["key", "closed", "claim_until"], name="semq_grant_open")]

    def __str__(self) -> str:
        return self.uid


class Lease(Table):
    """Permits given for a time, drawn with no round trip; deleted when settled and all acknowledged."""

    class State(models.IntegerChoices):
        LIVE = 0, _("live")
        STOPPED = 1, _("stopped")
        SETTLED = 2, _("settled")

    id = models.BigAutoField(primary_key=True)
    uid = models.CharField(max_length=64, help_text=_("The holder's id of it."))
    key = models.ForeignKey(Key, models.CASCADE, related_name="leases")
    group = NameField(blank=True)
    permits = models.IntegerField()
    drawn = models.IntegerField(default=0)
    released = models.IntegerField(default=0)
    draw_until = models.DateTimeField()
    expires_at = models.DateTimeField()
    renew_at = models.DateTimeField()
    renew_seconds = models.FloatField()
    state = models.SmallIntegerField(choices=State, default=State.LIVE)
    acked_drawn = models.IntegerField(default=0)
    acked_released = models.IntegerField(default=0)
    acked_stopped = models.BooleanField(default=False)
    created_at = models.DateTimeField()

    class Meta:
        verbose_name = _("lease")
        verbose_name_plural = _("leases")
        constraints = [
            models.UniqueConstraint(fields=["uid"], name="semq_lease_uid"),
            models.CheckConstraint(
                name="semq_lease_chain",
                condition=Q(released__gte=0) & Q(drawn__gte=F("released")) & Q(permits__gte=F("drawn")),
            ),
        ]
        indexes = [models.Index(fields=["key", "state", "renew_at"], name="semq_lease_renewal")]

    def __str__(self) -> str:
        return self.uid


class Nudge(Table):
    """Append-only: look at this key, this much changed. Folded and deleted by the pump, by exactly the ids it read."""

    id = models.BigAutoField(primary_key=True)
    queue = NameField(max_length=64)
    key = NameField()
    group = NameField(blank=True)
    queued_delta = models.IntegerField(default=0)
    grant_id = models.BigIntegerField(null=True, blank=True)
    lease_id = models.BigIntegerField(null=True, blank=True)
    returned = models.IntegerField(default=0, help_text=_("Permits of the grant or lease that came back."))
    created_at = models.DateTimeField()

    class Meta:
        verbose_name = _("nudge")
        verbose_name_plural = _("nudges")
        indexes = [models.Index(fields=["queue", "key", "id"], name="semq_nudge_key")]

    def __str__(self) -> str:
        return f"{self.key} {self.group} {self.queued_delta:+d}"


class Driver(Table):
    """One row: what the drivers of a project have to agree on."""

    id = models.SmallIntegerField(primary_key=True, default=1)
    wake_asked_at = models.DateTimeField(null=True, blank=True, help_text=_("A wake-up task is on its way."))
    rules_digest = models.CharField(max_length=64, blank=True, default="")

    class Meta:
        verbose_name = _("driver")
        verbose_name_plural = _("drivers")

    def __str__(self) -> str:
        return "driver"
