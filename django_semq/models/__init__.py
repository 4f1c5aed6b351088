"""Tables. `queue` is the client's half, `holder` the authority's; neither half writes the other's rows, but
for nudges, which anyone may append."""

from django_semq.models.holder import Ceiling, Client, Demand, IssuedGrant, IssuedLease, Semaphore
from django_semq.models.queue import Driver, Grant, Item, Key, KeyGroup, Lease, Nudge, State

__all__ = [
    "Ceiling",
    "Client",
    "Demand",
    "Driver",
    "Grant",
    "IssuedGrant",
    "IssuedLease",
    "Item",
    "Key",
    "KeyGroup",
    "Lease",
    "Nudge",
    "Semaphore",
    "State",
]
