"""A client of another service, which speaks plain version 1 over a network that loses one message in ten.

What it does about permits is `tests.sim.peer`; here are its sockets, its JSON, and a clock of its own. It writes
down when each of its items runs, for an observer.
"""

import json
import random
import time
from collections import Counter
from http.client import HTTPConnection
from urllib.parse import quote

from django_semq import clock
from django_semq.protocol.messages import (
    Blocked,
    BlockedReason,
    Envelope,
    GrantOffer,
    GrantResult,
    PermitRequest,
    Reply,
    Verdict,
)
from django_semq.protocol.wire import milliseconds
from tests.concurrency.observer import Observer
from tests.sim.peer import Peer
from tests.sim.wire import Letter

LOSS = 0.1
PAUSE = 0.01


class Client:
    def __init__(self, name: str, token: str, port: int, observer: Observer, seed: int) -> None:
        self.peer = Peer(name)
        self.token = token
        self.port = port
        self.observer = observer
        self.random = random.Random(f"{seed} {name}")
        self.lost: Counter[str] = Counter()
        self.ask_again: dict[str, float] = {}
        self.seen: set[str] = set()

    def run(self, keys: list[str], items: int) -> None:
        """Ask for this many items of these keys, and come to an end with all of them."""
        for number in range(items):
            self.peer.want(keys[number % len(keys)], "", clock.now())
        while self.peer.open_keys:
            for key in self.peer.open_keys:
                self.speak_of(key)
            self.work()
            time.sleep(PAUSE)

    def speak_of(self, key: str) -> None:
        waits = any(wish.key == key for wish in self.peer.waiting) or key in self.peer.asked
        if waits and time.monotonic() >= self.ask_again.get(key, 0):
            envelope, number = self.peer.request(key)
            if not envelope.message.demand:  # Version 1 has no other word for "nothing more".
                self.peer.asked.discard(key)
                return
        else:
            envelope, number = self.peer.sync(key)
        reply = self.send(envelope)
        if reply is not None:
            self.peer.receive(Letter(self.peer, envelope, number), reply)

    def work(self) -> None:
        """Begin what was confirmed, and end what has begun a moment ago."""
        for wish in self.peer.running:
            item = f"{self.peer.name}-{wish.number}"
            if item not in self.seen:
                self.seen.add(item)
                self.observer.note("start", wish.key, wish.group, item)
            elif self.random.random() < 0.5:
                self.observer.note("end", wish.key, wish.group, item)
                self.peer.end(wish)

    def send(self, envelope: Envelope) -> Reply | None:
        """None if the request or its reply was lost: the client cannot tell which."""
        message = envelope.message
        is_request = isinstance(message, PermitRequest)
        if self.random.random() < LOSS / 2:
            self.lost["requests"] += 1
            return None
        data = {
            "type": "request" if is_request else "sync",
            "v": 1,
            "clientId": message.client_id,
            "grants": [
                {"grantId": report.grant_id, "claimed": report.claimed, "released": report.released}
                for report in message.grants
            ],
        }
        if is_request:
            data["demand"] = [
                {"group": wanted.group, "count": wanted.count, "oldestAt": milliseconds(wanted.oldest_at)}
                for wanted in message.demand
            ]
        status, answer = self.post(f"/holder/semaphores/{quote(envelope.key, safe='')}/{data['type']}/", data)
        if status == 503:
            return None
        assert status == 200, (status, answer)
        if self.random.random() < LOSS / 2:
            self.lost["replies"] += 1
            return None
        if is_request:
            self.ask_again[envelope.key] = time.monotonic() + answer["nextRequestAt"] / 1000 - time.time()
        return Reply(
            grant_results=tuple(
                GrantResult(result["grantId"], result["claimed"], Verdict(result["status"]))
                for result in answer["grantResults"]
            ),
            grants=tuple(
                GrantOffer(grant["grantId"], grant["group"], grant["permits"]) for grant in answer.get("grants", ())
            ),
            blocked=tuple(
                Blocked(blocked["group"], BlockedReason(blocked["reason"])) for blocked in answer.get("blocked", ())
            ),
            contended=answer["contended"],
        )

    def post(self, path: str, data: dict) -> tuple[int, dict]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
            connection.request("POST", path, json.dumps(data), headers)
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()
