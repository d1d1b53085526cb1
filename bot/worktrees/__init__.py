"""The checkout of a conversation: create, sync, switch, commit, push, reset, remove."""
