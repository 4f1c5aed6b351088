from tests.concurrency.conftest import observer, project, spawn  # noqa: F401 - fixtures
