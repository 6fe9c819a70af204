"""What must be refused."""

import pytest

from polybound.errors import PolyboundError


def refuses(message, call, *args, error=PolyboundError, **options):
    """The text with which a call is refused: one line, in which the pattern is found."""
    with pytest.raises(error, match=message or None) as caught:
        call(*args, **options)
    text = str(caught.value)
    assert text and "\n" not in text
    return text
