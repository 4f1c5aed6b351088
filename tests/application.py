"""The application of the tests' project: it takes what it is given."""


def admit(items):
    """Accept the items; tests release them where they have to."""
