"""The networks and images that commands are given: run folders, files, bundled networks; test images and pictures."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polybound as pb
from polybound.errors import PolyboundError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


@dataclass(frozen=True, eq=False)
class GivenNetwork:
    """A network that a command is given.

    Attributes:
        name: of the folder, of the file without its ending, or of the bundled network.
        model: the network.
        spec: everything that determined its training; None if that is not known.
        about: the columns of a run, or the file.
        file: where its weights are; None for a bundled network.
        origin: of a bundled network, how it is made again.
    """

    name: str
    model: pb.PolynomialNetwork
    spec: pb.Spec | None
    about: Mapping[str, Any]
    file: Path | None = None
    origin: dict[str, Any] | None = None

    def images(self, dataset: str | None, data_dir: Path | None) -> pb.data.Dataset:
        """Test images that fit it: those of the data set that is named, or of its own."""
        if dataset is None and self.spec is None:
            raise PolyboundError(f"{self.name}: no data set: pass --dataset NAME, one that `polybound data list` shows")
        own = dataset is None and self.spec
        data = own.data.load("test", data_dir) if own else pb.data.load(str(dataset), "test", data_dir=data_dir)
        if data.x[0].numel() != self.model.features:
            raise PolyboundError(f"{data.name} has inputs of shape {data.shape}, the model takes {self.model.shape}")
        if data.classes > self.model.classes:
            classes = f"{data.classes} classes, the model {self.model.classes}"
            raise PolyboundError(f"{data.name} has {classes}: another data set")
        return data


def find_network(given: str | Path) -> GivenNetwork:
    """The network of a run folder, a model's file, an ONNX file or, if there is no such file, a bundled network."""
    path, name = Path(given), str(given)
    if name in pb.models.EXAMPLES and not path.exists():
        origin = pb.models.example_origin(name)
        return GivenNetwork(name, pb.example(name), pb.Spec.from_dict(origin["spec"]), {}, origin=origin)
    loaded = pb.runs.load_model(path)
    if (run := loaded.run) is None:
        return GivenNetwork(path.stem, loaded.model, None, {}, path)
    return GivenNetwork(path.resolve().name, loaded.model, run.spec(), loaded.about, run.model_file())


# Images: files, and indices of data sets' test splits.


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


def draw(image: npt.NDArray[np.float64], domain: tuple[float, float]) -> str:
    """A picture in characters, two rows of pixels in a line; the lighter, the denser."""
    import numpy as np

    rows = image.reshape(-1, *image.shape[-2:]).mean(0)
    grey = ((rows - domain[0]) / (domain[1] - domain[0])).clip(0, 1)
    if len(grey) % 2:
        grey = np.vstack([grey, np.zeros_like(grey[:1])])
    pairs = (grey[0::2] + grey[1::2]) / 2
    shades = " .:-=+*#%@"
    return "\n".join("".join(shades[int(value * 9.999)] for value in line) for line in pairs)
