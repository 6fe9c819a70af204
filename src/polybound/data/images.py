"""Image files in a folder for each class."""

from __future__ import annotations

import struct
import warnings
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from polybound.data.samples import Samples
from polybound.errors import FileFormatError, PolyboundError

__all__ = ["class_folders", "image_shape", "read_images"]

_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".pgm", ".ppm", ".webp")
_FORMATS = ("PNG", "JPEG", "BMP", "PPM", "WEBP")  # not all that Pillow can read: for some it runs other programs
_MODES = {"1": "L", "L": "L", "P": "RGB", "RGB": "RGB"}
_MAX_PIXELS = 1 << 24


def class_folders(folder: Path) -> dict[str, list[Path]]:
    """The image files of each class, both in the order of their names; hidden files and folders are passed over."""
    classes = {}
    for entry in sorted(_shown(folder)):
        if not entry.is_dir():
            raise FileFormatError(f"{entry}: a file, where a folder for each class should be")
        files = sorted(_shown(entry))
        for file in files:
            if not file.is_file() or file.suffix.lower() not in _SUFFIXES:
                raise FileFormatError(f"{file}: not an image file ({', '.join(_SUFFIXES)})")
        if not files:
            raise FileFormatError(f"{entry}: no images in it")
        classes[entry.name] = files
    if len(classes) < 2:
        raise FileFormatError(f"{folder}: {len(classes)} folders of images in it; at least two classes are needed")
    return classes


def _shown(folder: Path) -> list[Path]:
    return [entry for entry in folder.iterdir() if not entry.name.startswith(".")]


def image_shape(classes: dict[str, list[Path]]) -> tuple[int, ...]:
    """The shape of the first image, which all others must have."""
    return _read(next(iter(classes.values()))[0]).shape


def read_images(classes: dict[str, list[Path]], shape: tuple[int, ...]) -> Samples:
    """All images, (samples, 1 or 3, height, width).

    Raises:
        FileFormatError: one cannot be read, or is of another size, or grey among coloured ones.
    """
    files = [file for files in classes.values() for file in files]
    x = np.empty((len(files), *shape), dtype=np.uint8)
    for index, file in enumerate(files):
        image = _read(file)
        if image.shape != shape:
            raise FileFormatError(
                f"{file}: {_times(image.shape)} (channels, height, width), others are {_times(shape)}"
            )
        x[index] = image
    y = np.repeat(np.arange(len(classes), dtype=np.int64), [len(files) for files in classes.values()])
    return Samples(x, y, tuple(classes))


def _read(path: Path) -> npt.NDArray[np.uint8]:
    try:
        from PIL import Image
    except ImportError as error:
        raise PolyboundError("reading image files needs Pillow: pip install 'polybound[images]'") from error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the limit below is stricter than Pillow's
            with Image.open(path, formats=_FORMATS) as image:
                if image.width * image.height > _MAX_PIXELS:
                    raise FileFormatError(f"{path}: {image.width} x {image.height} pixels are too many")
                if image.mode not in _MODES:
                    raise FileFormatError(f"{path}: of mode {image.mode}; save it in grey or RGB")
                array = np.asarray(image.convert(_MODES[image.mode]))
    except Image.DecompressionBombError as error:
        raise FileFormatError(f"{path}: too many pixels ({error})") from error
    except FileFormatError:
        raise
    except (OSError, SyntaxError, ValueError, EOFError, struct.error, zlib.error) as error:
        raise FileFormatError(f"{path}: not an image that can be read ({' '.join(str(error).split())})") from error
    return array[None] if array.ndim == 2 else array.transpose(2, 0, 1)


def _times(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))
