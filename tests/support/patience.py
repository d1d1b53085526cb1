"""How long tests wait for what must happen."""

PATIENCE_SECONDS = 120.0
"""The outer limit of every wait, far beyond what a busy machine takes: only what never happens runs into it."""
