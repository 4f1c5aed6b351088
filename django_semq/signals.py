"""Signals for applications, sent after the commit with `send_robust`: a receiver cannot break anything.

`sender` is the `Item` class. Delivery is best effort (a crash between commit and signal loses it), and
`item_admitted` is sent by whichever process admitted, a web process too: receivers must be quick.
All carry `queue`, `key`, `group` and `timestamp` (aware datetime), and further:

- `item_queued`, `item_released`, `item_cancelled`: `id`
- `item_admitted`: `id`, `wait_ms` (whole milliseconds from enqueue to admission)
- `item_blocked`: `reason`, `count` (items of this group that wait); once per change of the reason
"""

from __future__ import annotations

from django.dispatch import Signal

item_queued = Signal()
item_blocked = Signal()
item_admitted = Signal()
item_released = Signal()
item_cancelled = Signal()

keys_nudged = Signal()
"""Internal: waiting items of these keys became eligible by something other than their own queue.

Arguments: `queue` (alias), `keys` (list of names). Sent after commit; the pump listens.
"""

driver_wanted = Signal()
"""Internal: something is due for a driver. Argument: `queue` (alias). Sent after commit; drivers listen."""
