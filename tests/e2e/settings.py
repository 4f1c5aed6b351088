"""The project of the processes that these tests start, made as their environment says.

SEMQ_TEST_SETTINGS  SEMQ, as JSON
SEMQ_TEST_CLUSTER   what is different in Q_CLUSTER, as JSON; null takes a setting away
SEMQ_TEST_WAITS     dotted path -> seconds: waits of the library that no setting shortens
SEMQ_TEST_JOURNAL   the file that its application writes down events in
SEMQ_TEST_CONN_MAX_AGE  seconds for which it keeps database connections
"""

import json
import os

from tests.settings import *  # noqa: F403
from tests.settings import DATABASES, INSTALLED_APPS

DATABASES["default"]["CONN_MAX_AGE"] = int(os.environ.get("SEMQ_TEST_CONN_MAX_AGE", "0"))

INSTALLED_APPS = [*INSTALLED_APPS, "tests.e2e"]
SEMQ = json.loads(os.environ.get("SEMQ_TEST_SETTINGS", "{}"))
Q_CLUSTER = {
    "name": "semq-tests",
    "orm": "default",
    "workers": 2,
    "timeout": 90,
    "retry": 300,
    "poll": 0.1,
    "save_limit": 250,
    "catch_up": False,
}
Q_CLUSTER |= json.loads(os.environ.get("SEMQ_TEST_CLUSTER", "{}"))
Q_CLUSTER = {name: value for name, value in Q_CLUSTER.items() if value is not None}
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"console": {"class": "logging.StreamHandler"}},
    "loggers": {"django_semq": {"handlers": ["console"], "level": "INFO"}},
}
