"""lmnb."""
