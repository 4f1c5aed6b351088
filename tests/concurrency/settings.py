"""The project of the processes that these tests start: as small as it can be, for they start often."""

import json
import os

from tests.settings import *  # noqa: F403

INSTALLED_APPS = [
    "django.contrib.contenttypes",
    "django.contrib.auth",
    "django_q",
    "django_semq",
    "tests.concurrency",
]
MIDDLEWARE: list = []
ROOT_URLCONF = __name__
urlpatterns: list = []
SEMQ = json.loads(os.environ.get("SEMQ_TEST_SETTINGS", "{}"))
# A cluster that is killed leaves its messages locked for `retry` seconds.
Q_CLUSTER = {
    "name": "semq-tests",
    "orm": "default",
    "workers": 2,
    "timeout": 5,
    "retry": 11,
    "poll": 0.1,
    "queue_limit": 2,
    "save_limit": -1,
    "catch_up": False,
}
# Most of these tests start no cluster; the one that does has ticks short enough.
SILENCED_SYSTEM_CHECKS = ["semq.W022"]
