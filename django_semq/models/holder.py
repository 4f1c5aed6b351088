"""The holder's tables: limits, and what was issued of them. What is free is derived and stored nowhere.

Written under the lock of the semaphore row. `footprint` is kept in the transaction that changes the issued
rows and can be recounted from them at any time.
"""

from __future__ import annotations

from django.db import models
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _

from django_semq.models.base import NameField, Table


class Semaphore(Table):
    """One key at its authority."""

    id = models.BigAutoField(primary_key=True)
    name = NameField()
    override = models.IntegerField(
        null=True, blank=True, help_text=_("The operator's limit; empty with has_override: unlimited.")
    )
    has_override = models.BooleanField(default=False)
    paused = models.BooleanField(default=False, help_text=_("Nothing is issued; what was issued goes on."))
    footprint = models.IntegerField(default=0, help_text=_("Permits issued and not yet known to be back."))
    answer = models.TextField(blank=True, default="", help_text=_("What the LIMITS function said last, as JSON."))
    answered_at = models.DateTimeField(null=True, blank=True)
    clamp_at = models.DateTimeField(null=True, blank=True, help_text=_("No grant's claim window ends before."))
    idle_since = models.DateTimeField(null=True, blank=True, help_text=_("Nothing is issued since then."))

    class Meta:
        verbose_name = _("semaphore")
        verbose_name_plural = _("semaphores")
        constraints = [
            models.UniqueConstraint(fields=["name"], name="semq_semaphore_name"),
            models.CheckConstraint(name="semq_semaphore_footprint", condition=Q(footprint__gte=0)),
        ]
        indexes = [
            models.Index(fields=["idle_since"], name="semq_semaphore_idle"),
            models.Index(fields=["clamp_at"], name="semq_semaphore_clamp"),
        ]

    def __str__(self) -> str:
        return self.name


class Ceiling(Table):
    """One group of a key. A row exists only while something of it is issued, overridden or paused."""

    id = models.BigAutoField(primary_key=True)
    semaphore = models.ForeignKey(Semaphore, models.CASCADE, related_name="ceilings")
    name = NameField(blank=True)
    override = models.IntegerField(null=True, blank=True)
    has_override = models.BooleanField(default=False)
    paused = models.BooleanField(default=False)
    footprint = models.IntegerField(default=0)

    class Meta:
        verbose_name = _("ceiling")
        verbose_name_plural = _("ceilings")
        constraints = [
            models.UniqueConstraint(fields=["semaphore", "name"], name="semq_ceiling_name"),
            models.CheckConstraint(name="semq_ceiling_footprint", condition=Q(footprint__gte=0)),
        ]

    def __str__(self) -> str:
        return self.name or str(_("(no group)"))


class Client(Table):
    """One identity that may ask for permits. A local queue has a row with its alias and no token."""

    id = models.BigAutoField(primary_key=True)
    client_id = NameField()
    queue = NameField(max_length=64, blank=True, default="", help_text=_("Alias of a local queue."))
    token_hash = models.CharField(max_length=64, blank=True, default="")
    patterns = models.TextField(
        blank=True, default="", help_text=_("Patterns of the keys it may use, one on each line; empty: all keys.")
    )
    last_seen = models.DateTimeField(null=True, blank=True)
    evicted_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        verbose_name = _("client")
        verbose_name_plural = _("clients")
        constraints = [models.UniqueConstraint(fields=["client_id"], name="semq_client_id")]
        indexes = [models.Index(fields=["token_hash"], name="semq_client_token")]

    def __str__(self) -> str:
        return self.client_id


class Demand(Table):
    """How many permits a client still waits for in one group, and since when. Gone once it is met."""

    id = models.BigAutoField(primary_key=True)
    semaphore = models.ForeignKey(Semaphore, models.CASCADE, related_name="demands")
    client = models.ForeignKey(Client, models.CASCADE, db_constraint=False, related_name="demands")
    group = NameField(blank=True)
    count = models.BigIntegerField()
    since = models.DateTimeField(help_text=_("Arrival of its oldest item."))
    fresh_until = models.DateTimeField(help_text=_("Its part of a round is kept for it until then."))

    class Meta:
        verbose_name = _("demand")
        verbose_name_plural = _("demands")
        constraints = [
            models.UniqueConstraint(fields=["semaphore", "client", "group"], name="semq_demand_group"),
        ]

    def __str__(self) -> str:
        return f"{self.group} {self.count}"


class IssuedGrant(Table):
    """A grant as its issuer counts it: `permits − released`, once clamped `claimed − released`."""

    id = models.BigAutoField(primary_key=True)
    uid = models.CharField(max_length=64)
    semaphore = models.ForeignKey(Semaphore, models.CASCADE, related_name="grants")
    client = models.ForeignKey(Client, models.CASCADE, db_constraint=False, related_name="grants")
    group = NameField(blank=True)
    permits = models.IntegerField()
    claimed = models.IntegerField(default=0)
    released = models.IntegerField(default=0)
    claim_until = models.DateTimeField(help_text=_("What is unclaimed by then comes back."))
    clamped = models.BooleanField(default=False, help_text=_("No claim is accepted any more."))
    issued_at = models.DateTimeField()

    class Meta:
        verbose_name = _("issued grant")
        verbose_name_plural = _("issued grants")
        constraints = [
            models.UniqueConstraint(fields=["uid"], name="semq_issued_grant_uid"),
            models.CheckConstraint(
                name="semq_issued_grant_chain",
                condition=Q(released__gte=0) & Q(claimed__gte=F("released")) & Q(permits__gte=F("claimed")),
            ),
        ]
        indexes = [
            models.Index(fields=["semaphore", "clamped", "claim_until"], name="semq_issued_grant_open"),
        ]

    def __str__(self) -> str:
        return self.uid


class IssuedLease(Table):
    """A lease as its issuer counts it: `permits − released`, once retired `drawn − released`."""

    class State(models.IntegerChoices):
        LIVE = 0, _("live")
        RECALLED = 1, _("recalled")
        RETIRED = 2, _("retired")

    id = models.BigAutoField(primary_key=True)
    uid = models.CharField(max_length=64)
    semaphore = models.ForeignKey(Semaphore, models.CASCADE, related_name="leases")
    client = models.ForeignKey(Client, models.CASCADE, db_constraint=False, related_name="leases")
    group = NameField(blank=True)
    permits = models.IntegerField()
    drawn = models.IntegerField(default=0)
    released = models.IntegerField(default=0)
    expires_at = models.DateTimeField()
    state = models.SmallIntegerField(choices=State, default=State.LIVE)
    issued_at = models.DateTimeField()

    class Meta:
        verbose_name = _("issued lease")
        verbose_name_plural = _("issued leases")
        constraints = [
            models.UniqueConstraint(fields=["uid"], name="semq_issued_lease_uid"),
            models.CheckConstraint(
                name="semq_issued_lease_chain",
                condition=Q(released__gte=0) & Q(drawn__gte=F("released")) & Q(permits__gte=F("drawn")),
            ),
        ]
        indexes = [models.Index(fields=["semaphore", "state", "expires_at"], name="semq_issued_lease_state")]

    def __str__(self) -> str:
        return self.uid
