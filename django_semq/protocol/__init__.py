"""The words of client and holder, as plain Python values."""
