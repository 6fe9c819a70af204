"""Proof files that were changed, with a digest that fits again."""

import json

import pytest

import polybound as pb
from polybound.certificates import check_file, files


def refused(tmp_path, model, content, message):
    """The content, with its digest made to fit again, is refused by the proof itself."""
    content.pop("digest")
    content["digest"] = files._digest(content)
    path = tmp_path / "tampered.json"
    path.write_text(json.dumps(content))
    with pytest.raises(pb.PolyboundError, match=message):
        check_file(path, model)
