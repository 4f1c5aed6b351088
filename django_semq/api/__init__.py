"""The REST API: an edge over the library's functions, for front-ends and other programs.

It checks who asks and what for, calls what any Python caller would call, and decides nothing itself. Include
`django_semq.api.urls` in a project's URLs; authentication, rendering and throttling are the project's own.
"""
