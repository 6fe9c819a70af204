"""NSynth: musical notes as pictures, classified by the family of their instrument.

The spectrogram of a note, of shape 1 x 32 x 32, is made as follows.

1. The first second, at 8 kHz. A recording at a multiple of this rate is brought down to it by averaging neighbours.
2. 32 frames of 512 samples (64 ms), one every 240 samples (30 ms), each times a Hann window.
3. The power of their real Fourier transforms, scaled such that a sine of full scale has power 1 at its frequency.
4. 32 mel bands: triangles that begin, peak and end at neighbouring ones of 34 points, which lie evenly between 0 and
   4,000 Hz on the mel scale m = 2595 log10(1 + f / 700). A band's power is the sum of the powers, each times the
   triangle's height.
5. Decibels, 10 log10(power), cut to [-80, 0] and mapped to [-1, 1] by v / 40 + 1. The same constants for all notes.

Row 0 is the lowest band, column 0 the first frame.
"""

from __future__ import annotations

import io
import json
import wave
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from polybound.atomic import write_atomically
from polybound.data.dataset import Dataset, hold_out
from polybound.data.files import DataFile, Directories, archive_checksum, cache_folder, combined, refusing, tar_members
from polybound.data.sources import Source
from polybound.progress import progress_bar

VERSION = 1  # of the definition above; features of another version are computed again
RATE = 8000
FRAMES = 32
BANDS = 32
FRAME = 512
HOP = 240
FLOOR = -80.0

_PARTS = {"train": "train", "validation": "valid", "test": "test"}
_DIVIDED = (
    "part of NSynth's official test split of {} notes, which was divided by instrument, so that none is in both train"
    " and test; NSynth's official train split is not there"
)


@dataclass(frozen=True, kw_only=True)
class NSynthSource(Source):
    """NSynth, from its archives of JSON and wav files.

    With the archive of train, the splits are the official ones. Without it (it has 24 GB) the official test split is
    all there is; it is then divided into train and test by instrument, and the data set's note says so.

    Attributes:
        archives: the file of each official split.
    """

    archives: Mapping[str, DataFile]

    def read(self, split: str, directories: Directories) -> Dataset:
        official = self._official(directories)
        if split not in _PARTS or (split == "validation" and not official):
            raise self.no_such_split(split)
        whole = split if official else "test"
        (path,) = directories.need(self.name, self.folders, (self.archives[whole],))
        digest = archive_checksum(path, self.archives[whole])
        notes = read_notes(path, digest, _PARTS[whole], self.counts[whole], self.class_names)
        return notes if official else hold_out(notes, split, _DIVIDED.format(len(notes.y)))

    def files(self, *, full: bool = False) -> tuple[DataFile, ...]:
        return tuple(self.archives.values()) if full else (self.archives["test"],)

    def digest(self, directories: Directories) -> str:
        files = self.files(full=self._official(directories))
        parts = {file.name: directories.checksum(self.name, self.folders, file) for file in files}
        return combined(parts | {"spectrograms": str(VERSION)})

    def _official(self, directories: Directories) -> bool:
        """Whether the splits are the official ones."""
        return directories.find(self.folders, self.archives["train"]) is not None


def read_notes(path: Path, digest: str, part: str, count: int, families: tuple[str, ...]) -> Dataset:
    """All notes of an archive, ordered by name, as pictures with their families (the classes) and instruments.

    The pictures are computed once, and then kept in the user's cache directory under the archive's digest.
    """
    kept = cache_folder() / "features" / f"nsynth-{part}-{digest[:32]}-v{VERSION}.npz"
    arrays: dict[str, npt.NDArray[Any]] = {}
    # What was kept, unless there is nothing, or nothing usable: then it is computed again.
    damaged = suppress(OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile)
    with damaged, kept.open("rb") as file, np.load(file, allow_pickle=False) as stored:
        x, y, groups = (stored[name] for name in ("x", "y", "groups"))
        right = x.shape == (count, 1, BANDS, FRAMES) and y.shape == groups.shape == (count,)
        right = right and x.dtype == np.float32 and y.dtype == groups.dtype == np.int64
        if right and bool(np.all(np.abs(x) <= 1) and np.all((y >= 0) & (y < len(families)))):
            arrays = {"x": x, "y": y, "groups": groups}
    if not arrays:
        arrays = _compute(path, count)
        content = io.BytesIO()
        np.savez(content, x=arrays["x"], y=arrays["y"], groups=arrays["groups"])
        with suppress(OSError):  # without a cache all works, only slower
            kept.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(kept, content.getvalue())
    x, y, groups = (torch.from_numpy(arrays[name]) for name in ("x", "y", "groups"))
    return Dataset("nsynth", part, x, y, families, groups=groups)


def _compute(path: Path, count: int) -> dict[str, npt.NDArray[Any]]:
    """The pictures x, families y and instruments of the notes of an official archive, ordered by name."""
    pictures: dict[str, npt.NDArray[np.float32]] = {}
    examples: dict[str, dict[str, Any]] = {}
    with progress_bar() as show, refusing(path):
        for member, content in tar_members(path, lambda name: name.endswith((".json", ".wav"))):
            if member.endswith(".json"):
                examples = json.loads(content)
            else:
                pictures[Path(member).stem] = log_mel(first_second(content)[None])[0]
            show(len(pictures), count, f"spectrograms of {path.name}")
    names = sorted(pictures)
    keys = {"y": "instrument_family", "groups": "instrument"}
    labels = {name: np.array([examples[note][key] for note in names], dtype=np.int64) for name, key in keys.items()}
    return {"x": np.stack([pictures[name] for name in names]), **labels}


def first_second(content: bytes) -> npt.NDArray[np.float32]:
    """The first second of a mono wav file of 16-bit samples, at 8 kHz, in [-1, 1)."""
    with wave.open(io.BytesIO(content)) as file:
        frames = file.readframes(file.getframerate())
    samples = np.frombuffer(frames, "<i2").astype(np.float32) / 32768
    second: npt.NDArray[np.float32] = samples.reshape(RATE, -1).mean(axis=1)
    return second


def log_mel(waves: npt.NDArray[np.floating]) -> npt.NDArray[np.float32]:
    """The spectrograms of notes, as this module defines them.

    Args:
        waves: one second each at 8 kHz, (notes, 8000).

    Returns:
        (notes, 1, 32, 32), in [-1, 1].

    Example:
        >>> tone = np.sin(2 * np.pi * 1000 * np.arange(8000) / 8000)
        >>> picture = log_mel(tone[None])[0, 0]
        >>> int(picture[:, 0].argmax()), float(picture.max()) > 0.9, float(picture.min())
        (14, True, -1.0)
    """
    starts = HOP * np.arange(FRAMES)
    frames = waves.astype(np.float64)[:, starts[:, None] + np.arange(FRAME)]
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(FRAME) / FRAME)
    spectrum = np.fft.rfft(frames * window, axis=-1) * (2 / window.sum())
    power = spectrum.real**2 + spectrum.imag**2
    decibels = 10 * np.log10(np.maximum(power @ _bank(), 10 ** (FLOOR / 10)))
    pictures: npt.NDArray[np.float64] = np.minimum(decibels, 0.0) / (-FLOOR / 2) + 1
    return pictures.swapaxes(1, 2)[:, None].astype(np.float32)


@cache
def _bank() -> npt.NDArray[np.float64]:
    """The triangles' heights at the frequencies of the Fourier transform, (frequencies, bands)."""
    top = 2595 * np.log10(1 + RATE / 2 / 700)
    points = 700 * (10 ** (np.linspace(0, top, BANDS + 2) / 2595) - 1)
    frequencies = np.fft.rfftfreq(FRAME, 1 / RATE)[:, None]
    low, peak, high = points[:-2], points[1:-1], points[2:]
    rising, falling = (frequencies - low) / (peak - low), (high - frequencies) / (high - peak)
    return np.maximum(np.minimum(rising, falling), 0.0)
