"""How much of the random and the worst input is played: little in every run, more by `make fuzz`."""

import os

FUZZ = int(os.environ.get("THREADTREE_FUZZ", "1"))
"""How many times as much as in every run; over 1 it is also other input than the last time."""
