"""Who may ask this holder from elsewhere."""

from __future__ import annotations

import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from django_semq import clock
from django_semq.exceptions import SemqError
from django_semq.holder import clients
from django_semq.models import Client


class Command(BaseCommand):
    help = "Introduce, list and evict the clients of this holder. `add` and `rotate` print the token on the last line."

    def add_arguments(self, parser: CommandParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        add = verbs.add_parser("add", help="introduce a client")
        add.add_argument("name", help="its CLIENT_ID")
        add.add_argument(
            "--keys", action="append", default=[], metavar="PATTERN", help="keys that it may use (default: all)"
        )
        for verb, text in [
            ("rotate", "give it a new token; the old one is refused at once"),
            ("evict", "refuse it, and free all it holds: say so only of one that runs nothing any more"),
            ("readmit", "let an evicted one speak again"),
        ]:
            verbs.add_parser(verb, help=text).add_argument("name")
        verbs.add_parser("list", help="name them all")

    def handle(self, *args: Any, verb: str, **options: Any) -> None:
        try:
            if verb == "add":
                self.stdout.write(clients.add(options["name"], patterns="\n".join(options["keys"])))
            elif verb == "rotate":
                self.stdout.write(clients.rotate(options["name"]))
            elif verb == "evict":
                freed = clients.evict(options["name"], now=clock.now())
                self.stdout.write(f"{options['name']}: evicted, {freed} permits are free")
            elif verb == "readmit":
                clients.readmit(options["name"])
                self.stdout.write(f"{options['name']}: may speak again")
            else:
                self._list()
        except SemqError as error:
            self.stderr.write(str(error))
            sys.exit(2)

    def _list(self) -> None:
        for client in Client.objects.order_by("client_id"):
            seen = f"heard {client.last_seen:%Y-%m-%d %H:%M:%S}" if client.last_seen else "never heard"
            what = f"queue {client.queue} of this project" if client.queue else seen
            evicted = f", evicted {client.evicted_at:%Y-%m-%d %H:%M:%S}" if client.evicted_at else ""
            keys = f", keys {' '.join(client.patterns.splitlines())}" if client.patterns else ""
            self.stdout.write(f"{client.client_id}: {what}{evicted}{keys}")
