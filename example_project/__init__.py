"""A small project that uses django_semq as yours would: `make run`, then open the page it names."""
