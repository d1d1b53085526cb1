"""A budget for JSON of strangers and agents: parsing many small values takes long, and nothing else runs meanwhile."""

import re
from itertools import islice

# Payloads and agents' messages have some hundreds. Long ones have long texts, which are one value each.
MOST_VALUES = 20_000
# Shorter text has not many more values than that.
UNCOUNTED_BYTES = 32 * 1024
# What separates or begins values, or a string as a whole; one without an end reaches to the end of the text. Written
# with one set of first characters, so that all else is skipped fast.
_VALUE = re.compile(rb'[\[{,"](?:(?<=")[^"\\]*+(?:\\.[^"\\]*+)*+"?+)?+', re.DOTALL)


def has_many_values(text: bytes) -> bool:
    """Return whether the JSON has more values than anything that the bot reads. Takes no longer for more values."""
    if len(text) <= UNCOUNTED_BYTES:
        return False
    return next(islice(_VALUE.finditer(text), 2 * MOST_VALUES, None), None) is not None
