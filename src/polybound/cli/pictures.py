"""Images that a command is given: files and indices of data sets' test splits."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

import numpy as np
import numpy.typing as npt

from polybound.errors import PolyboundError

__all__ = ["draw", "read_images"]

Images = list[tuple[str, npt.NDArray[np.float64]]]

_INDICES = re.compile(r"(?P<name>.+):(?P<first>\d+)(-(?P<last>\d+))?")


def read_images(given: list[str], shape: tuple[int, ...], domain: tuple[float, float], data_dir: Path | None) -> Images:
    """All images with their names, of that shape, their values in the domain.

    Raises:
        PolyboundError: something is no image of that shape; the message names it.
    """
    found: Images = []
    for word in given:
        path = Path(word)
        match = _INDICES.fullmatch(word)
        if match and not path.exists():
            first, last = int(match["first"]), int(match["last"] or match["first"])
            found += _of_dataset(match["name"], first, last, shape, data_dir)
        elif not path.is_file():
            raise PolyboundError(f"{word}: no such file, and not of the form DATASET:5, DATASET:0-9 or folder:PATH:0-9")
        elif path.suffix in (".npy", ".npz"):
            found += _of_arrays(path, shape, domain)
        else:
            found.append((word, _of_picture(path, shape, domain)))
    return found


def _of_dataset(name: str, first: int, last: int, shape: tuple[int, ...], data_dir: Path | None) -> Images:
    from polybound.data import load

    data = load(name, "test", data_dir=data_dir)
    if not first <= last < len(data.x):
        raise PolyboundError(f"{name}: its test split has images 0 to {len(data.x) - 1}, not {first} to {last}")
    images = data.x[first : last + 1].double().numpy()
    _check(f"{name}", images[0], shape)
    return [(f"{name}:{i}", image) for i, image in enumerate(images, first)]


def _of_arrays(path: Path, shape: tuple[int, ...], domain: tuple[float, float]) -> Images:
    try:
        content = np.load(path, allow_pickle=False)
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise PolyboundError(f"{path}: not an array of numbers ({error})") from None
    arrays = {"": content} if isinstance(content, np.ndarray) else {name: content[name] for name in content.files}
    found: Images = []
    for name, array in arrays.items():
        if name in ("y", "y_test", "labels"):
            continue
        one = array.size == int(np.prod(shape))
        for i, image in enumerate(array[None] if one else array):
            label = ":".join([str(path), *([name] if name else []), *([] if one else [str(i)])])
            _check(label, image, shape)
            found.append((label, _scaled(image.reshape(shape), domain)))
    return found


def _of_picture(path: Path, shape: tuple[int, ...], domain: tuple[float, float]) -> npt.NDArray[np.float64]:
    try:
        from PIL import Image, UnidentifiedImageError
    except ModuleNotFoundError:
        raise PolyboundError("reading pictures needs pillow: pip install 'polybound[images]'") from None
    channels, height, width = shape if len(shape) == 3 else (1, *shape) if len(shape) == 2 else (0, 0, 0)
    if channels not in (1, 3):
        raise PolyboundError(f"{path}: the network takes inputs of shape {shape}, which are no pictures")
    try:
        with Image.open(path) as picture:
            pixels = np.asarray(picture.convert("L" if channels == 1 else "RGB"))
    except (UnidentifiedImageError, OSError) as error:
        raise PolyboundError(f"{path}: not a picture ({error})") from None
    if pixels.shape[:2] != (height, width):
        raise PolyboundError(f"{path}: {pixels.shape[1]} x {pixels.shape[0]} pixels, {width} x {height} are wanted")
    return _scaled(pixels.reshape(height, width, channels).transpose(2, 0, 1), domain)


def _check(name: str, image: npt.NDArray[np.generic], shape: tuple[int, ...]) -> None:
    if image.size != int(np.prod(shape)) or not np.issubdtype(image.dtype, np.number):
        raise PolyboundError(f"{name}: an image of shape {image.shape}, {shape} is wanted")


def _scaled(image: npt.NDArray[np.generic], domain: tuple[float, float]) -> npt.NDArray[np.float64]:
    """Bytes become values of the domain; other numbers stay as they are."""
    values = image.astype(np.float64)
    if image.dtype == np.uint8:
        values = domain[0] + values / 255 * (domain[1] - domain[0])
    return values


def draw(image: npt.NDArray[np.float64], domain: tuple[float, float]) -> str:
    """A picture in characters, two rows of pixels in a line; the lighter, the denser."""
    rows = image.reshape(-1, *image.shape[-2:]).mean(0)
    grey = ((rows - domain[0]) / (domain[1] - domain[0])).clip(0, 1)
    if len(grey) % 2:
        grey = np.vstack([grey, np.zeros_like(grey[:1])])
    pairs = (grey[0::2] + grey[1::2]) / 2
    shades = " .:-=+*#%@"
    return "\n".join("".join(shades[int(value * 9.999)] for value in line) for line in pairs)
