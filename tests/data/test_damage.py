"""Damage of any format, without a digest that would tell: refused in a line that names the file, or harmless."""

import numpy as np
import pytest
import torch

from helpers import data as on_disk
from polybound.data import load


def gzipped(root, monkeypatch):
    on_disk.put_mnist(root, on_disk.tiny_mnist(monkeypatch, digests=False)[1])
    return "tiny", root / "tiny" / "train-images-idx3-ubyte.gz"


def arrays(root, _):
    np.savez(root / "data.npz", X=on_disk.random_bytes(20, 6, 4), y=np.arange(20) % 2)
    return f"folder:{root / 'data.npz'}", root / "data.npz"


FORMATS = (gzipped, arrays)


def damaged(whole):
    """Truncations of a content, and contents with one bit flipped."""
    size = len(whole)
    for length in (*range(30), *(size * part // 12 for part in range(1, 12)), size - 1):
        yield whole[:length]
    for position in (*range(20), *range(20, size, 1 + size // 40), size - 1):
        yield whole[:position] + bytes([whole[position] ^ 0x10]) + whole[position + 1 :]


@pytest.mark.parametrize("make", FORMATS, ids=lambda make: make.__name__)
def test_damage_is_refused_or_harmless(root, monkeypatch, make):
    """Time stamps in headers do not matter. Archives are not read before their checksum is known to be right."""
    name, path = make(root, monkeypatch)
    whole, good, refusals = path.read_bytes(), load(name, data_dir=root, download=False), 0
    for content in damaged(whole):
        path.write_bytes(content)
        read = on_disk.read_or_refused(path, lambda: load(name, data_dir=root, download=False))
        assert read is None or torch.equal(read.x, good.x)
        refusals += read is None
        assert read is None or len(content) > 0.9 * len(whole)
    assert refusals > 50
