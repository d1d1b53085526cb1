"""The first step: a webhook is checked, stored and acknowledged."""
