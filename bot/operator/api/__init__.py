"""The HTTP API for operators: what the command line lists and does, in the same words."""
