"""How a test's run ends at a failpoint."""


class KilledError(BaseException):
    """The process ended here."""
