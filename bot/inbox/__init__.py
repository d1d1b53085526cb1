"""The webhook: a delivery is received, stored, and decided."""
