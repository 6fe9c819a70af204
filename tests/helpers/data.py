"""Small data sets in the official formats, and a file server that can be told to misbehave; no tests are in here."""

import gzip
import hashlib
import io
import json
import struct
import tarfile
import threading
import wave
import zipfile
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from polybound.data import DataFile, files, load
from polybound.data.catalogue import SOURCES
from polybound.data.nsynth import NSynthSource
from polybound.data.sources import CifarSource, IdxSource, idx_files
from polybound.errors import FileFormatError

FACTS = {"title": "tiny", "licence": "none", "home": "nowhere"}


@pytest.fixture
def root(tmp_path, monkeypatch):
    """An empty data directory, and no other one that could be found."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("POLYBOUND_DATA", raising=False)
    monkeypatch.setattr(files, "SYSTEM", tmp_path / "system")
    folder = tmp_path / "data"
    folder.mkdir()
    return folder


def splits_of(name, **options):
    """All three splits of a data set."""
    return [load(name, split, **options) for split in ("train", "validation", "test")]


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
    stems = {"train": "train", "test": "t10k"}
    contents = {}
    for split, stem in stems.items():
        for array, kind in zip(arrays[split], ("images-idx3-ubyte", "labels-idx1-ubyte"), strict=True):
            contents[f"{stem}-{kind}"] = idx(array)
    parts = {}
    for split, stem in stems.items():
        known = tuple(sha(idx(array)) for array in arrays[split]) if digests else ()
        parts[split] = idx_files(stem, counts[split], known, tuple(f"{base}/" for base in bases), size)
    source = IdxSource(
        name="tiny",
        shape=(1, *size),
        class_names=tuple("0123456789"),
        counts=counts,
        folders=("tiny",),
        parts=parts,
        **FACTS,
    )
    monkeypatch.setitem(SOURCES.entries, "tiny", source)
    return source, contents, arrays


def put_mnist(root, contents, packed=True):
    for name, content in contents.items():
        write(root / "tiny" / (f"{name}.gz" if packed else name), gzip.compress(content) if packed else content)


def serve_mnist(server, monkeypatch, where=""):
    """Such a data set on a server, nothing of it on this machine; its files' bytes."""
    _, contents, _ = tiny_mnist(monkeypatch, bases=[f"{server.url}{where}"])
    server.files.update({f"{where}/{name}.gz": gzip.compress(content) for name, content in contents.items()})
    return contents


def put_images(folder, classes=("cat", "dog"), count=10, shape=(6, 4), seed=0):
    """A folder of PNG images for each class; the images as arrays."""
    arrays = random_bytes(len(classes), count, *shape, seed=seed)
    for name, images in zip(classes, arrays, strict=True):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for index, image in enumerate(images):
            Image.fromarray(image).save(folder / name / f"{index:02d}.png")
    return arrays


def tiny_emnist(monkeypatch, part="letters"):
    """A part of EMNIST with few images: its zip file's bytes, its arrays, and the members of the zip file."""
    letters, first = ("ABC", 1) if part == "letters" else ("01a", 0)
    official = SOURCES.entries[f"emnist-{part}"]
    counts = {"train": 12, "test": 6}
    arrays, members = {}, {}
    for split, count in counts.items():
        images, labels = random_bytes(count, 28, 28, seed=count), np.arange(count, dtype=np.uint8) % 3 + first
        arrays[split] = images, labels
        members[f"gzip/emnist-{part}-{split}-images-idx3-ubyte.gz"] = gzip.compress(idx(images))
        members[f"gzip/emnist-{part}-{split}-labels-idx1-ubyte.gz"] = gzip.compress(idx(labels))
    members[f"gzip/emnist-{part}-mapping.txt"] = b"1 65 97\n"
    content = zipped(members)
    source = replace(
        official,
        class_names=tuple(letters),
        counts=counts,
        parts={split: idx_files(f"emnist-{part}-{split}", count) for split, count in counts.items()},
        archive=DataFile("gzip.zip", max(len(content), 100000), (sha(content),)),
    )
    assert isinstance(source, IdxSource) and source.first_label == first
    monkeypatch.setitem(SOURCES.entries, source.name, source)
    return content, arrays, members


def zipped(members):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return stream.getvalue()


def tarred(members):
    """A gzipped tar archive of these members."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz", compresslevel=1) as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return stream.getvalue()


def tiny_cifar(monkeypatch):
    """CIFAR-10 with four images of 3 x 4 x 4 a batch: the batches by name, the arrays of both splits, and the source."""
    names = [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]
    arrays = {
        name: (random_bytes(4, 3, 4, 4, seed=seed), random_bytes(4, high=10, seed=seed + 50))
        for seed, name in enumerate(names)
    }
    batches = {
        name: b"".join(bytes([label]) + image.tobytes() for image, label in zip(images, labels, strict=True))
        for name, (images, labels) in arrays.items()
    }
    files = [DataFile(name, len(content), (sha(content),)) for name, content in batches.items()]
    source = replace(
        SOURCES.entries["cifar10"],
        shape=(3, 4, 4),
        counts={"train": 20, "test": 4},
        archive=DataFile("cifar-10-binary.tar.gz", 1 << 20),
        parts={"train": tuple(files[:5]), "test": tuple(files[5:])},
    )
    assert isinstance(source, CifarSource)
    monkeypatch.setitem(SOURCES.entries, "cifar10", source)
    splits = {
        split: tuple(np.concatenate([arrays[name][index] for name in part]) for index in range(2))
        for split, part in (("train", names[:5]), ("test", names[5:]))
    }
    return batches, splits, source


CIFAR = "cifar-10-batches-bin"


def put_cifar(folder, batches, archived=False):
    """CIFAR-10's binary batches in a folder, as an archive or unpacked; where they are."""
    if archived:
        members = {f"{CIFAR}/{name}": content for name, content in batches.items()}
        content = tarred(members | {f"{CIFAR}/readme.html": b"<html>"})
        source = SOURCES.entries["cifar10"]
        SOURCES.entries["cifar10"] = replace(source, archive=replace(source.archive, sha256=(sha(content),)))
        return write(folder / "cifar-10-binary.tar.gz", content)
    for name, content in batches.items():
        write(folder / CIFAR / name, content)
    return folder / CIFAR


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
    """Members of an archive of NSynth: some instruments of each family, some notes of each instrument."""
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
        files[split] = DataFile(f"nsynth-{part}.jsonwav.tar.gz", 1 << 22, digests)
    source = replace(SOURCES.entries["nsynth"], class_names=FAMILIES, counts=counts, archives=files)
    assert isinstance(source, NSynthSource)
    monkeypatch.setitem(SOURCES.entries, "nsynth", source)


class Server(ThreadingHTTPServer):
    """Serves what is in `files`; the first answers break off after `cut` bytes."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files, self.requests = {}, []
        self.cuts, self.cut, self.status = 0, 0, 0
        self.url = f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        server = self.server
        server.requests.append(self.path)
        body = server.files.get(self.path)
        if body is None or server.status:
            self.send_error(server.status or 404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if server.cuts:
            server.cuts -= 1
            body = body[: server.cut]
            self.close_connection = True
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr("pooch.core.time", SimpleNamespace(sleep=lambda _: None))  # between two attempts
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()
