"""Where generation happens: backends and their contexts."""
