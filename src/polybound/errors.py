"""The errors polybound raises on purpose; each message is one line that says what to do."""

__all__ = ["ArgumentError", "FileFormatError", "NonFiniteError", "PolyboundError", "reason"]


class PolyboundError(ValueError):
    """Bad input of any kind. The command line prints its message and exits with code 2."""


class ArgumentError(PolyboundError):
    """A value that an argument cannot have. The command line puts the option's own name before what is wrong.

    Attributes:
        name: of the argument.
        problem: what is wrong, as the rest of a sentence that begins with the name. `name=value` in it means another
            argument, which the command line shows as an option too.

    >>> str(ArgumentError("limit", "must be at least 1, got 0"))
    'limit must be at least 1, got 0'
    """

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(name, problem)
        self.name, self.problem = name, problem

    def __str__(self) -> str:
        return f"{self.name} {self.problem}"


class FileFormatError(PolyboundError):
    """A file that cannot be read as what it should be: truncated, damaged or foreign."""


class NonFiniteError(PolyboundError, ArithmeticError):
    """A value overflowed or became NaN; the message says where and when."""


def reason(error: Exception) -> str:
    """What an error says; the text of a `KeyError` alone would be the bare key.

    >>> reason(KeyError("seed")), reason(ValueError("no number"))
    ("'seed' is missing", 'no number')
    """
    return f"{error.args[0]!r} is missing" if isinstance(error, KeyError) and error.args else str(error)
