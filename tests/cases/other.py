"""Settings of a project with other habits: of keys, languages and time zones. The tables are the same."""

import os
from pathlib import Path

from tests.settings import *  # noqa: F403

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": Path(os.environ["SEMQ_TEST_FOLDER"], "other.sqlite3"),
        "OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 30},
    }
}
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"
LANGUAGE_CODE = "de"
TIME_ZONE = "Asia/Kathmandu"
