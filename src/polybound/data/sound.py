"""Notes as pictures: a wav file's first second, and its log-mel spectrogram.

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
import wave
from functools import cache

import numpy as np
import numpy.typing as npt

from polybound.data.checksums import refusing
from polybound.errors import FileFormatError

__all__ = ["BANDS", "FRAMES", "RATE", "VERSION", "first_second", "log_mel"]

VERSION = 1  # of the definition above; features of another one are computed anew
RATE = 8000
FRAMES = 32
BANDS = 32
FRAME = 512
HOP = 240
FLOOR = -80.0
MAX_RATE = 48000

Floats = npt.NDArray[np.float64]


def first_second(content: bytes, where: str) -> tuple[npt.NDArray[np.float32], int]:
    """The first second of a mono wav file of 16-bit samples, at 8 kHz, in [-1, 1), and the rate it was sampled at.

    Args:
        content: the file's bytes.
        where: its name, for messages.

    Raises:
        FileFormatError: it is damaged or shorter than a second, or has several channels or another format or rate.
    """
    with refusing(where), wave.open(io.BytesIO(content)) as file:
        channels, width, rate = file.getnchannels(), file.getsampwidth(), file.getframerate()
        if channels != 1:
            raise FileFormatError(f"{where}: {channels} channels, not one")
        if width != 2:
            raise FileFormatError(f"{where}: samples of {8 * width} bits, not 16")
        if rate % RATE or not RATE <= rate <= MAX_RATE:
            raise FileFormatError(f"{where}: sampled at {rate} Hz, which is no multiple of {RATE} Hz up to {MAX_RATE}")
        frames = file.readframes(rate)
    if len(frames) != 2 * rate:
        raise FileFormatError(f"{where}: shorter than a second: truncated?")
    samples = np.frombuffer(frames, "<i2").astype(np.float32) / 32768
    second: npt.NDArray[np.float32] = samples.reshape(RATE, -1).mean(axis=1)
    return second, rate


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
    window = _hann()
    spectrum = np.fft.rfft(frames * window, axis=-1) * (2 / window.sum())
    power = spectrum.real**2 + spectrum.imag**2
    decibels = 10 * np.log10(np.maximum(power @ _bank(), 10 ** (FLOOR / 10)))
    pictures: Floats = np.minimum(decibels, 0.0) / (-FLOOR / 2) + 1
    return pictures.swapaxes(1, 2)[:, None].astype(np.float32)


@cache
def _hann() -> Floats:
    return 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(FRAME) / FRAME)


@cache
def _bank() -> Floats:
    """The triangles' heights at the frequencies of the Fourier transform, (frequencies, bands)."""
    top = 2595 * np.log10(1 + RATE / 2 / 700)
    points = 700 * (10 ** (np.linspace(0, top, BANDS + 2) / 2595) - 1)
    frequencies = np.fft.rfftfreq(FRAME, 1 / RATE)[:, None]
    low, peak, high = points[:-2], points[1:-1], points[2:]
    heights: Floats = np.minimum((frequencies - low) / (peak - low), (high - frequencies) / (high - peak))
    return np.maximum(heights, 0.0)
