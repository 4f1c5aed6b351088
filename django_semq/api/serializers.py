"""What the rows look like from outside. `row` is the row number, the address; `id` is the caller's own."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from rest_framework import serializers

from django_semq.api.counters import groups_of
from django_semq.holder import semaphores
from django_semq.models import Grant, Item, Key, Lease, State
from django_semq.transport.base import transport_of


class ItemSerializer(serializers.ModelSerializer[Item]):
    """An item in a list: without its body, which may have a megabyte."""

    row = serializers.IntegerField(source="pk", read_only=True)
    id = serializers.CharField(source="uid", read_only=True)
    state = serializers.SerializerMethodField()
    blocked = serializers.CharField(read_only=True)
    grant = serializers.IntegerField(source="grant_id", read_only=True)
    lease = serializers.IntegerField(source="lease_id", read_only=True)

    class Meta:
        model = Item
        fields = [
            "row", "id", "queue", "key", "group", "state", "blocked", "enqueued_at", "admitted_at",
            "handed_over", "started", "attempt", "last_error", "grant", "lease",
        ]  # fmt: skip
        read_only_fields = fields

    def get_state(self, item: Item) -> str:
        return State(item.state).name.lower()


class ItemDetailSerializer(ItemSerializer):
    body = serializers.SerializerMethodField()

    class Meta(ItemSerializer.Meta):
        fields = [*ItemSerializer.Meta.fields, "body"]
        read_only_fields = fields

    def get_body(self, item: Item) -> Any:
        try:
            return json.loads(item.body)
        except ValueError:
            return item.body  # Somebody wrote the table by hand: show what is there.


class KeySerializer(serializers.ModelSerializer[Key]):
    """A key in a list: what waits, claims and runs in all its groups."""

    row = serializers.IntegerField(source="pk", read_only=True)
    queued = serializers.IntegerField(read_only=True)
    claiming = serializers.IntegerField(read_only=True)
    admitted = serializers.IntegerField(read_only=True)
    blocked = serializers.CharField(read_only=True)

    class Meta:
        model = Key
        fields = [
            "row", "name", "queue", "queued", "claiming", "admitted", "blocked",
            "set_aside_until", "error", "next_request_at", "due_at",
        ]  # fmt: skip
        read_only_fields = fields


class KeyDetailSerializer(KeySerializer):
    """Further each group, and what the holder has issued to whom, if it is in this project."""

    groups = serializers.SerializerMethodField()
    holder = serializers.SerializerMethodField()

    class Meta(KeySerializer.Meta):
        fields = [*KeySerializer.Meta.fields, "groups", "holder"]
        read_only_fields = fields

    def get_groups(self, key: Key) -> list[dict[str, Any]]:
        return groups_of(key)

    def get_holder(self, key: Key) -> dict[str, Any] | None:
        return asdict(semaphores.usage(key.name)) if transport_of(key.queue).inline else None


class GrantSerializer(serializers.ModelSerializer[Grant]):
    row = serializers.IntegerField(source="pk", read_only=True)
    id = serializers.CharField(source="uid", read_only=True)
    queue = serializers.CharField(source="key.queue", read_only=True)
    key = serializers.CharField(source="key.name", read_only=True)

    class Meta:
        model = Grant
        fields = [
            "row", "id", "queue", "key", "group", "permits", "claimed", "confirmed", "admitted", "released",
            "claim_until", "closed", "created_at",
        ]  # fmt: skip
        read_only_fields = fields


class LeaseSerializer(serializers.ModelSerializer[Lease]):
    row = serializers.IntegerField(source="pk", read_only=True)
    id = serializers.CharField(source="uid", read_only=True)
    queue = serializers.CharField(source="key.queue", read_only=True)
    key = serializers.CharField(source="key.name", read_only=True)
    state = serializers.SerializerMethodField()

    class Meta:
        model = Lease
        fields = [
            "row", "id", "queue", "key", "group", "permits", "drawn", "released", "state",
            "draw_until", "expires_at", "created_at",
        ]  # fmt: skip
        read_only_fields = fields

    def get_state(self, lease: Lease) -> str:
        return Lease.State(lease.state).name.lower()
