"""The pretend provider's own books. django_semq knows nothing of them: they are how one sees that it keeps its word."""

from django.db import models


class Account(models.Model):
    name = models.CharField(max_length=255, unique=True)
    calls = models.PositiveIntegerField(default=0, help_text="Calls that were taken.")
    refusals = models.PositiveIntegerField(default=0, help_text="Calls that were one too many.")
    peak = models.PositiveIntegerField(default=0, help_text="Most calls at once, the refused ones included.")

    def __str__(self) -> str:
        return self.name


class Call(models.Model):
    """A call goes on until it ends, whatever becomes of the process that made it."""

    account = models.ForeignKey(Account, models.CASCADE, related_name="+")
    kind = models.CharField(max_length=255, blank=True)
    reference = models.CharField(max_length=255, unique=True, help_text="The caller's name for it.")
    ends_at = models.DateTimeField()

    class Meta:
        indexes = [models.Index(fields=["account", "ends_at"], name="provider_call_running")]

    def __str__(self) -> str:
        return self.reference
