"""The images that commands are given: files, and indices of data sets' test splits."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import polybound as pb
from polybound.errors import PolyboundError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


Images = list[tuple[str, "npt.NDArray[np.float64]"]]

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
            data = pb.data.load(match["name"], "test", data_dir=data_dir)
            if not first <= last < len(data.x):
                message = f"its test split has images 0 to {len(data.x) - 1}, not {first} to {last}"
                raise PolyboundError(f"{match['name']}: {message}")
            images = data.x[first : last + 1].double().numpy()
            _check_image(match["name"], images[0], shape)
            found += [(f"{match['name']}:{i}", image) for i, image in enumerate(images, first)]
        elif not path.is_file():
            raise PolyboundError(f"{word}: no such file, and not of the form DATASET:5, DATASET:0-9 or folder:PATH:0-9")
        elif path.suffix in (".npy", ".npz"):
            found += _of_arrays(path, shape, domain)
        else:
            found.append((word, _of_picture(path, shape, domain)))
    return found


def _of_arrays(path: Path, shape: tuple[int, ...], domain: tuple[float, float]) -> Images:
    import numpy as np

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
            _check_image(label, image, shape)
            found.append((label, _scaled(image.reshape(shape), domain)))
    return found


def _of_picture(path: Path, shape: tuple[int, ...], domain: tuple[float, float]) -> npt.NDArray[np.float64]:
    channels, height, width = shape if len(shape) == 3 else (1, *shape) if len(shape) == 2 else (0, 0, 0)
    if channels not in (1, 3):
        raise PolyboundError(f"{path}: the network takes inputs of shape {shape}, which are no pictures")
    pixels = pb.data.read_image(path, "L" if channels == 1 else "RGB")
    if pixels.shape[1:] != (height, width):
        raise PolyboundError(f"{path}: {pixels.shape[2]} x {pixels.shape[1]} pixels, {width} x {height} are wanted")
    return _scaled(pixels, domain)


def _check_image(name: str, image: npt.NDArray[np.generic], shape: tuple[int, ...]) -> None:
    import numpy as np

    if image.size != int(np.prod(shape)) or not np.issubdtype(image.dtype, np.number):
        raise PolyboundError(f"{name}: an image of shape {image.shape}, {shape} is wanted")


def _scaled(image: npt.NDArray[np.generic], domain: tuple[float, float]) -> npt.NDArray[np.float64]:
    """Bytes become values of the domain; other numbers stay as they are."""
    values = image.astype("float64")
    return domain[0] + values / 255 * (domain[1] - domain[0]) if image.dtype == "uint8" else values
