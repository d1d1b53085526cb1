"""Threadtree: a chat-ops bot for GitHub that runs a coding agent per conversation."""
