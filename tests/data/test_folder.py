"""A user's own images and arrays: read, split and scaled; what does not fit is refused by name."""

import io
import shutil
import sys
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image

from helpers.data import put_images, random_bytes, refused, splits_of, write
from helpers.errors import refuses
from polybound.data import load
from polybound.errors import FileFormatError


def test_official_splits_of_folders(root, tmp_path):
    train, test = put_images(root / "train"), put_images(root / "test", count=3, seed=1)
    data = load(f"folder:{root}", "train")
    assert data.class_names == ("cat", "dog") and data.shape == (1, 6, 4) and data.note == ""
    assert np.allclose(data.x[:, 0].numpy(), train.reshape(-1, 6, 4) / 127.5 - 1, atol=1e-6)
    assert data.y.tolist() == [0] * 10 + [1] * 10
    tested = load(f"folder:{root}", "test")
    assert np.allclose(tested.x[:, 0].numpy(), test.reshape(-1, 6, 4) / 127.5 - 1, atol=1e-6)
    refuses("no official validation", load, f"folder:{root}", "validation")
    put_images(root / "validation", classes=("dog",), count=2)
    refuses("at least two", load, f"folder:{root}", "validation", error=FileFormatError)
    put_images(root / "validation", classes=("cat",), count=2)
    assert len(load(f"folder:{root}", "validation")) == 4


def test_colours(root):
    put_images(root, shape=(6, 4, 3))
    data = load(f"folder:{root}", "train")
    assert data.shape == (3, 6, 4)
    first = np.asarray(Image.open(root / "cat" / "00.png"))
    assert any(np.allclose(x.permute(1, 2, 0).numpy(), first / 127.5 - 1, atol=1e-6) for x in data.x) or len(data) < 20


def test_without_test_a_fifth_of_each_class_is_held_out(root):
    put_images(root, count=10)
    for layout in (root, root / "train"):
        if layout != root:
            for name in ("cat", "dog"):
                (root / "train").mkdir(exist_ok=True)
                (root / name).rename(root / "train" / name)
        train, test = load(f"folder:{root}", "train", seed=1), load(f"folder:{root}", "test", seed=2)
        assert train.y.tolist() == [0] * 8 + [1] * 8 and test.y.tolist() == [0, 0, 1, 1]
        assert "held out" in train.note and "held out" in test.note
        rows = {x.numpy().tobytes() for x in torch.cat([train.x, test.x])}
        assert len(rows) == 20
    assert [len(split) for split in splits_of(f"folder:{root}", validation=0.25)] == [12, 4, 4]


def test_a_class_may_be_called_train(root):
    put_images(root, classes=("car", "train"))
    assert load(f"folder:{root}", "train").class_names == ("car", "train")


def test_without_pillow_the_extra_is_named(root, monkeypatch):
    put_images(root)
    monkeypatch.setitem(sys.modules, "PIL", None)
    refuses(r"polybound\[images\]", load, f"folder:{root}")


def png(array):
    stream = io.BytesIO()
    Image.fromarray(array).save(stream, "PNG")
    return stream.getvalue()


GOOD = png(random_bytes(6, 4))

IMAGES = {
    "other size": (png(random_bytes(4, 6)), "1 x 4 x 6"),
    "coloured among grey": (png(random_bytes(6, 4, 3)), "3 x 6 x 4"),
    "transparent": (png(random_bytes(6, 4, 4)), "mode RGBA"),
    "cut": (GOOD[:-30], "not an image"),
    "flipped": (GOOD[:45] + bytes([GOOD[45] ^ 0xFF]) + GOOD[46:], "not an image"),
    "a format that runs programs": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 4 6\n", "not an image"),
}


@pytest.mark.parametrize(("content", "word"), IMAGES.values(), ids=IMAGES)
def test_wrong_images_are_refused(root, content, word):
    put_images(root)
    path = write(root / "dog" / "05.png", content)
    assert word in refused(f"folder:{root}", path)


def test_images_with_too_many_pixels_are_refused_before_they_are_unpacked(root):
    put_images(root)
    path = root / "dog" / "05.png"
    Image.new("L", (5000, 5000)).save(path)
    assert "too many" in refused(f"folder:{root}", path)


def test_wrong_folders_are_refused(root):
    refuses("no such folder", load, f"folder:{root}/nothing")
    assert "0 folders" in refused(f"folder:{root}", root)
    put_images(root, classes=("cat",))
    assert "at least two" in refused(f"folder:{root}", root)
    (root / "dog").mkdir()
    assert "no images" in refused(f"folder:{root}", root / "dog")
    put_images(root)
    path = write(root / "dog" / "notes.txt", b"x")
    assert "not an image file" in refused(f"folder:{root}", path)
    path.unlink()
    path = write(root / "labels.csv", b"x")
    assert "where a folder" in refused(f"folder:{root}", path)
    path.unlink()
    (root / "dog" / "more").mkdir()
    refused(f"folder:{root}", root / "dog" / "more")


def test_a_test_split_of_other_classes_or_sizes_is_refused(root):
    put_images(root / "train")
    put_images(root / "test", classes=("cat", "cow"))
    assert "cow" in refused(f"folder:{root}", root / "test" / "cow", split="test")
    shutil.rmtree(root / "test")
    put_images(root / "test", shape=(6, 5))
    assert "1 x 6 x 5" in refused(f"folder:{root}", root / "test", split="test")


# npz files


def put_npz(root, **arrays):
    path = root / "data.npz"
    np.savez(path, **arrays)
    return path


X, Y = random_bytes(20, 6, 4), np.arange(20) % 2


def test_npz_with_a_test_split(root):
    path = put_npz(root, X=X, y=Y, X_test=X[:4], y_test=Y[:4])
    data = load(f"folder:{path}", "train")
    assert data.shape == (1, 6, 4) and data.class_names == ("0", "1") and data.note == ""
    assert np.allclose(data.x[:, 0].numpy(), X / 127.5 - 1, atol=1e-6) and data.y.tolist() == Y.tolist()
    assert len(load(f"folder:{path}", "test")) == 4
    refuses("validation", load, f"folder:{path}", "validation")


def test_npz_without_one(root):
    path = put_npz(root, X=X.reshape(20, 24) / 255.0, y=np.array(["no", "yes"])[Y])
    train, test = load(f"folder:{path}", "train"), load(f"folder:{path}", "test")
    assert len(train) == 16 and test.y.tolist().count(0) == 2 and train.shape == (24,)
    assert train.class_names == ("no", "yes") and "held out" in test.note
    assert train.x.dtype == torch.float32 and train.x.min() >= 0


@pytest.mark.parametrize("shape", [(20, 24), (20, 6, 4), (20, 2, 3, 4)])
def test_npz_shapes(root, shape):
    path = put_npz(root, X=X.reshape(shape), y=Y, X_test=X.reshape(shape), y_test=Y)
    assert load(f"folder:{path}").shape == (shape[1:] if len(shape) != 3 else (1, 6, 4))


NPZ = {
    "no X": ({"y": Y}, "'X'"),
    "X_test without y_test": ({"X": X, "y": Y, "X_test": X}, "'y_test'"),
    "objects in X": ({"X": np.array([print] * 20, dtype=object), "y": Y}, "plain arrays"),
    "one NaN": ({"X": np.where(np.arange(60).reshape(20, 3) == 31, np.nan, 0.5), "y": Y}, "nan"),
    "not scaled": ({"X": X.astype(float), "y": Y}, "scale them"),
    "complex": ({"X": X.astype(complex), "y": Y}, "complex"),
    "one dimension": ({"X": X[:, 0, 0], "y": Y}, "shape"),
    "no samples": ({"X": X[:0], "y": Y[:0]}, "shape"),
    "labels in columns": ({"X": X, "y": Y[:, None]}, "20 samples"),
    "labels with gaps": ({"X": X, "y": Y * 10**9}, "1000000000"),
    "fractions as labels": ({"X": X, "y": Y + 0.5}, "float64"),
    "one class": ({"X": X, "y": Y * 0}, "only one class"),
    "other shape in test": ({"X": X, "y": Y, "X_test": X[:, :5], "y_test": Y}, "different shapes"),
    "other type in test": ({"X": X, "y": Y, "X_test": X / 255, "y_test": Y}, "different types"),
}


@pytest.mark.parametrize(("arrays", "word"), NPZ.values(), ids=NPZ)
def test_wrong_npz_files_are_refused(root, arrays, word):
    path = put_npz(root, **arrays)
    assert word in refused(f"folder:{path}", path)


def test_npz_bombs_are_not_unpacked(root, monkeypatch):
    path = put_npz(root, X=X, y=Y)
    monkeypatch.setattr("polybound.data.folder._MAX_BYTES", 700)
    assert "unpacks to more" in refused(f"folder:{path}", path)


@pytest.mark.parametrize("shape", ["(1000000000000000, 24)", "(-1, 24)", "(99999999999999999999, 24)", "(21, 24)"])
def test_npz_headers_that_announce_more_than_there_is_are_refused(root, shape):
    header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}}}\n".encode()
    array = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + X.tobytes()
    path = put_npz(root, y=Y)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("X.npy", array)
    refused(f"folder:{path}", path)
