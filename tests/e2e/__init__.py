"""The whole thing as it runs for a user: `qcluster` and `semq_run` as real processes on a real database.

`application` is the project's own code, `journal` what it wrote down of what happened to it, `settings` and `apps`
make the project; `conftest` starts its processes. What a test waits for is a line of the journal or a row.
"""
