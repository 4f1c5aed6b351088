"""Where other services reach this holder: include it under an address of your own.

Keys may hold anything, slashes and line breaks too, percent-encoded or not. A proxy on the way may still fold `//`
or `..` in a path: `exchange/` has keys in its body, and is what our own client uses.
"""

from __future__ import annotations

from django.urls import path, register_converter

from django_semq.api import holder_views


class KeyConverter:
    regex = "(?s:.+)"

    def to_python(self, value: str) -> str:
        return value

    def to_url(self, value: str) -> str:
        return value


register_converter(KeyConverter, "semq_key")

app_name = "django_semq_holder"

urlpatterns = [
    path("exchange/", holder_views.Exchange.as_view(), name="exchange"),
    path("semaphores/<semq_key:key>/request/", holder_views.RequestPermits.as_view(), name="request"),
    path("semaphores/<semq_key:key>/sync/", holder_views.SyncPermits.as_view(), name="sync"),
]
