"""How long a test waits for what must come."""

# Seconds. No test passes or fails by how fast the machine is; this only ends the wait for what will never come.
PATIENCE = 60
