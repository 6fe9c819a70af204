"""The errors polybound raises on purpose; each message is one line that says what to do."""

__all__ = ["FileFormatError", "NonFiniteError", "PolyboundError"]


class PolyboundError(ValueError):
    """Bad input of any kind. The command line prints its message and exits with code 2."""


class FileFormatError(PolyboundError):
    """A file that cannot be read as what it should be: truncated, damaged or foreign."""


class NonFiniteError(PolyboundError, ArithmeticError):
    """A value overflowed or became NaN; the message says where and when."""
