"""The code of pages: their fenced blocks, in order, and whether they are to be run."""

import re
import shlex
from dataclasses import dataclass

BLOCK = re.compile(r"(?:^<!-- not run: (?P<reason>.+?) -->\n)?^```(?P<language>\w+)\n(?P<text>.*?)^```", re.M | re.S)


@dataclass(frozen=True)
class Block:
    """A block of code, with the line that it begins in, and why it is not run; the reason is mostly empty."""

    language: str
    text: str
    line: int
    reason: str

    def commands(self):
        """The words of each `$ polybound ...` of a console block, without comments and what is printed."""
        lines = re.sub(r"\\\n", " ", self.text).splitlines()
        return [shlex.split(line[2:], comments=True)[1:] for line in lines if line.startswith("$ polybound ")]


def blocks(text):
    """All fenced blocks of a page."""
    return [
        Block(found["language"], found["text"], text.count("\n", 0, found.start("text")), found["reason"] or "")
        for found in BLOCK.finditer(text)
    ]
