"""Measurements: one command each, JSON on standard output, the peer beside us in the same run."""
