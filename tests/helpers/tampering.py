"""Proof files: what their check is to count, and files that were changed, with a digest that fits again."""

import hashlib
import json

from helpers.errors import refuses
from polybound.certificates import check_file


def forge(path, content):
    """Write content with a digest that fits it."""
    content = {key: value for key, value in content.items() if key != "digest"}
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps(content | {"digest": digest}))


def refused(tmp_path, model, content, message):
    """The content, with its digest made to fit again, is refused."""
    path = tmp_path / "tampered.json"
    forge(path, content)
    refuses(message, check_file, path, model)


def counted(found, x):
    """What the check of these certificates counts: distinct inputs of each status, and the repetitions."""
    distinct = {(status, tuple(point.reshape(-1).tolist())) for status, point in zip(found.status, x, strict=True)}
    counts = {
        status: sum(status == other for other, _ in distinct) for status in ("verified", "falsified", "undecided")
    }
    return counts | {"repeated": len(x) - len(distinct)}
