"""How fast it is, on a real database: `make bench`."""
