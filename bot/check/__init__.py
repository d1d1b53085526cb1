"""The check of a repository: its run on a result and on the base, and the reports that it leaves."""
