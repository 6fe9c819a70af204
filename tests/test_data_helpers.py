"""Small data sets in the official formats, written for the tests of `polybound.data`; no tests are in here."""

import gzip
import hashlib
import io
import json
import pickle
import struct
import tarfile
import wave
import zipfile
from dataclasses import replace

import numpy as np
import pytest

from polybound.data import shelf as shelf_module
from polybound.data.catalogue import SOURCES
from polybound.data.cifar import CifarSource, CifarVersion
from polybound.data.content import DataFile
from polybound.data.emnist import EmnistSource
from polybound.data.loading import load
from polybound.data.mnist import MnistSource
from polybound.data.nsynth import NSynthSource
from polybound.errors import FileFormatError

FACTS = {"title": "tiny", "licence": "none", "home": "nowhere"}


@pytest.fixture
def root(tmp_path, monkeypatch):
    """An empty data directory, and no other one that could be found."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("POLYBOUND_DATA", raising=False)
    monkeypatch.setattr(shelf_module, "SYSTEM", tmp_path / "system")
    folder = tmp_path / "data"
    folder.mkdir()
    return folder


def refused(name, path, split="train", **options):
    """The line with which a file is refused; it must name the file, and be one line."""
    with pytest.raises(FileFormatError) as caught:
        load(name, split, download=False, **options)
    text = str(caught.value)
    assert str(path) in text and "\n" not in text
    return text


def read_or_refused(path, read):
    """What reading gives, or None if it was refused in a line that names the path; nothing else may happen."""
    try:
        return read()
    except FileFormatError as error:
        text = str(error)
    assert str(path) in text and "\n" not in text
    return None


def sha(content):
    return hashlib.sha256(content).hexdigest()


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def random_bytes(*shape, high=256, seed=0):
    return np.random.default_rng(seed).integers(0, high, shape, dtype=np.uint8)


def idx(array, kind=8):
    return bytes([0, 0, kind, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def tiny_mnist(monkeypatch, digests=True, bases=(), size=(5, 3)):
    """A data set of MNIST's layout with images of 5 x 3; its source, its four files' bytes, and its arrays."""
    counts = {"train": 40, "test": 20}
    arrays = {
        split: (random_bytes(count, *size, seed=count), random_bytes(count, high=10, seed=count + 1))
        for split, count in counts.items()
    }
    kinds, contents = {"images": {}, "labels": {}}, {}
    for split, stem in (("train", "train"), ("test", "t10k")):
        for index, (kind, suffix) in enumerate((("images", "idx3-ubyte"), ("labels", "idx1-ubyte"))):
            content = idx(arrays[split][index])
            name = f"{stem}-{kind}-{suffix}"
            contents[name] = content
            kinds[kind][split] = DataFile(
                name,
                len(content),
                (sha(content),) if digests else (),
                tuple(f"{base}/{name}.gz" for base in bases),
                gzipped=True,
            )
    source = MnistSource(
        name="tiny",
        shape=(1, *size),
        class_names=tuple("0123456789"),
        counts=counts,
        folders=("tiny",),
        **kinds,
        **FACTS,
    )
    monkeypatch.setitem(SOURCES, "tiny", source)
    return source, contents, arrays


def put_mnist(root, contents, packed=True):
    for name, content in contents.items():
        write(root / "tiny" / (f"{name}.gz" if packed else name), gzip.compress(content) if packed else content)


def tiny_emnist(monkeypatch, part="letters", digest=True, **changes):
    """A part of EMNIST with few images: its zip file's bytes, its arrays, and the members of the zip file.

    Changes are of the zip file's members by name; None leaves one out.
    """
    letters, first = ("ABC", 1) if part == "letters" else ("01a", 0)
    counts = {"train": 12, "test": 6}
    arrays, members = {}, {}
    for split, count in counts.items():
        images, labels = random_bytes(count, 28, 28, seed=count), np.arange(count, dtype=np.uint8) % 3 + first
        arrays[split] = images, labels
        members[f"gzip/emnist-{part}-{split}-images-idx3-ubyte.gz"] = gzip.compress(idx(images))
        members[f"gzip/emnist-{part}-{split}-labels-idx1-ubyte.gz"] = gzip.compress(idx(labels))
    lines = [f"{first + index} {ord(text)} {ord(text.lower())}" for index, text in enumerate(letters)]
    members[f"gzip/emnist-{part}-mapping.txt"] = "\n".join(lines).encode() + b"\n"
    members = {name: content for name, content in (members | changes).items() if content is not None}
    content = zipped(members)
    source = EmnistSource(
        name=f"emnist-{part}",
        shape=(1, 28, 28),
        class_names=tuple(letters),
        counts=counts,
        folders=("emnist", f"emnist-{part}"),
        part=part,
        first_label=first,
        archive=DataFile("gzip.zip", max(len(content), 100000), (sha(content),) if digest else (), exact=False),
        **FACTS,
    )
    monkeypatch.setitem(SOURCES, source.name, source)
    return content, arrays, members


def zipped(members):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return stream.getvalue()


def tarred(members, extra=()):
    """A gzipped tar archive of these members, and of further ones given as TarInfo."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz", compresslevel=1) as archive:
        for info in extra:
            archive.addfile(info)
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return stream.getvalue()


class Python2Pickler(pickle._Pickler):
    """Writes strings as Python 2 did, in which the official batches were written."""

    dispatch = dict(pickle._Pickler.dispatch)  # noqa: RUF012

    def save_string(self, value):
        data = value.encode("latin-1") if isinstance(value, str) else value
        head = b"U" + bytes([len(data)]) if len(data) < 256 else b"T" + struct.pack("<i", len(data))
        self.write(head + data)
        self.memoize(value)

    dispatch[bytes] = dispatch[str] = save_string


def pickled(value, python2=True):
    stream = io.BytesIO()
    (Python2Pickler if python2 else pickle._Pickler)(stream, protocol=2).dump(value)
    # The name of the function before numpy 2, as in the official files.
    return stream.getvalue().replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n")


def cifar_batch(images, numbers, /, python2=True, **changes):
    batch = {
        b"batch_label": b"training batch 1 of 5",
        b"labels": numbers.tolist(),
        b"data": images.reshape(len(images), -1),
        b"filenames": [b"%d.png" % index for index in range(len(images))],
    }
    return pickled(batch | {key.encode(): value for key, value in changes.items()}, python2)


def tiny_cifar(monkeypatch, digests=True):
    """CIFAR-10 with four images of 3 x 4 x 4 a batch: both versions' batches by name, and the arrays of both splits."""
    names = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
    arrays = {
        name: (random_bytes(4, 3, 4, 4, seed=seed), random_bytes(4, high=10, seed=seed + 50))
        for seed, name in enumerate(names)
    }
    binary = {
        f"{name}.bin": b"".join(bytes([label]) + image.tobytes() for image, label in zip(images, labels, strict=True))
        for name, (images, labels) in arrays.items()
    }
    python = {name: cifar_batch(images, labels) for name, (images, labels) in arrays.items()}
    versions = []
    for folder, contents, archive in (("bin", binary, "binary"), ("py", python, "python")):
        files = [
            DataFile(name, len(content) if digests else 10000, (sha(content),) if digests else (), exact=digests)
            for name, content in contents.items()
        ]
        versions.append(
            CifarVersion(
                f"cifar-10-batches-{folder}",
                DataFile(f"cifar-10-{archive}.tar.gz", 1 << 20, exact=False),
                {"train": tuple(files[:5]), "test": tuple(files[5:])},
                pickled=folder == "py",
            )
        )
    source = replace(SOURCES["cifar10"], shape=(3, 4, 4), counts={"train": 20, "test": 4}, versions=tuple(versions))
    assert isinstance(source, CifarSource)
    monkeypatch.setitem(SOURCES, "cifar10", source)
    splits = {
        split: tuple(np.concatenate([arrays[name][index] for name in part]) for index in range(2))
        for split, part in (("train", names[:5]), ("test", names[5:]))
    }
    return binary, python, splits


def wav(samples, rate=8000, channels=1, width=2):
    stream = io.BytesIO()
    with wave.open(stream, "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(samples)
    return stream.getvalue()


def tone(frequency, rate=8000, seconds=1):
    times = np.arange(int(rate * seconds)) / rate
    return (20000 * np.sin(2 * np.pi * frequency * times)).astype("<i2").tobytes()


FAMILIES = ("bass", "brass", "flute")


def nsynth_members(part, instruments=((0, 4), (1, 3), (2, 2)), notes=2, rate=8000, first=0):
    """Members of an archive of NSynth: so many instruments of each family, so many notes of each instrument."""
    examples, sounds = {}, {}
    instrument = first
    for family, count in instruments:
        for _ in range(count):
            for pitch in range(notes):
                name = f"{FAMILIES[family]}_acoustic_{instrument:03d}-{pitch:03d}-100"
                examples[name] = {
                    "instrument_family": family,
                    "instrument_family_str": FAMILIES[family],
                    "instrument": instrument,
                    "sample_rate": rate,
                }
                sounds[f"nsynth-{part}/audio/{name}.wav"] = wav(tone(200 + 40 * instrument + 500 * pitch, rate), rate)
            instrument += 1
    return sounds | {f"nsynth-{part}/examples.json": json.dumps(examples).encode()}


def tiny_nsynth(monkeypatch, archives):
    """NSynth with these archives' bytes as official ones, or with any content for those of None."""
    counts = {"train": 24, "validation": 12, "test": 18}
    files = {}
    for split, part in (("train", "train"), ("validation", "valid"), ("test", "test")):
        content = archives.get(split)
        digests = () if content is None else (sha(content),)
        files[split] = DataFile(f"nsynth-{part}.jsonwav.tar.gz", 1 << 22, digests, exact=False)
    source = replace(SOURCES["nsynth"], class_names=FAMILIES, counts=counts, archives=files)
    assert isinstance(source, NSynthSource)
    monkeypatch.setitem(SOURCES, "nsynth", source)
