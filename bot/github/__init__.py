"""GitHub's API, and GitHub's JSON turned into values."""
