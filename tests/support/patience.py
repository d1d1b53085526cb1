"""How long tests wait for an event."""

PATIENCE_SECONDS = 120.0
"""The limit of every wait, far above what a busy machine needs: only a missing event reaches it."""
