from tests.queue.application import app, transactional_db  # noqa: F401 - fixtures
