"""A holder's web server: prints its port, serves until it is ended, a thread for each connection."""

import django
from django.conf import settings

django.setup()
settings.ROOT_URLCONF = "tests.services.urls"
settings.ALLOWED_HOSTS = ["127.0.0.1"]

from django.core.servers.basehttp import ThreadedWSGIServer, WSGIRequestHandler  # noqa: E402
from django.core.wsgi import get_wsgi_application  # noqa: E402


class Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Thousands of lines would say nothing."""


server = ThreadedWSGIServer(("127.0.0.1", 0), Quiet)
server.set_app(get_wsgi_application())
print("port", server.server_port)
server.serve_forever()
