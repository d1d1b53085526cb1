"""The command line: `main` puts the groups of commands together."""
