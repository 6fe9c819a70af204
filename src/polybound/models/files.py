"""Models on disk: safetensors with the config as JSON in the metadata. Nothing is pickled or unpickled."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from os import PathLike
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import nn

from polybound.atomic import write_atomically
from polybound.errors import FileFormatError, PolyboundError, reason
from polybound.models.base import PolynomialNetwork
from polybound.models.ccp import CCP
from polybound.models.conv import ConvCCP
from polybound.models.deep import GraphNetwork, PolyNet
from polybound.models.ncp import NCP
from polybound.models.products import BoxNet, PiNet, PolyMLP

_KINDS: dict[str, type[PolynomialNetwork]] = {
    kind.__name__: kind for kind in (CCP, NCP, ConvCCP, PolyNet, PiNet, PolyMLP, BoxNet, GraphNetwork)
}
_KEY = "polybound"


def save(model: PolynomialNetwork, path: str | PathLike[str], metadata: Mapping[str, str] | None = None) -> None:
    """Write a model, and more metadata beside its config; the file appears whole or not at all."""
    model = model.stored()
    header = {"kind": type(model).__name__, "config": model.config()}
    content = to_bytes(
        {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()},
        metadata={**(metadata or {}), _KEY: json.dumps(header)},
    )
    write_atomically(path, content)


def load(path: str | PathLike[str], device: torch.device | str = "cpu") -> PolynomialNetwork:
    """Read a model that `model.save(path)` wrote, bit for bit; it is in evaluation mode.

    Raises:
        FileFormatError: the file is truncated, damaged, or not a polybound model.
        OSError: the file cannot be opened.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    try:
        with safe_open(path, framework="pt", device=str(device)) as file:
            header = (file.metadata() or {}).get(_KEY)
            if header is None:
                raise FileFormatError(f"{path}: a safetensors file, but not a polybound model (no '{_KEY}' metadata)")
            content = json.loads(header)
            kind, config = _KINDS[content["kind"]], dict(content["config"])
            # On the meta device a wrong config costs no memory, however large the sizes it claims.
            model = kind.hollow(config)
            expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
            found = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
            if expected != found:
                raise FileFormatError(f"{path}: its tensors {found} do not fit its config, which asks for {expected}")
            state = {name: file.get_tensor(name) for name in expected}
    except SafetensorError as error:
        raise FileFormatError(f"{path}: not a whole safetensors file ({error})") from error
    except FileFormatError:
        raise
    except (PolyboundError, TypeError, KeyError, ValueError, RecursionError) as error:
        raise FileFormatError(f"{path}: its config is not that of a polybound model ({reason(error)})") from error
    whole = {name for name, tensor in model.state_dict().items() if not tensor.is_floating_point()}
    weights = [tensor for name, tensor in state.items() if name not in whole]
    if len({tensor.dtype for tensor in weights}) > 1 or not all(tensor.is_floating_point() for tensor in weights):
        raise FileFormatError(f"{path}: its tensors are not all of one floating-point type")
    model.load_state_dict(state, assign=True)
    try:
        return (model.settled() if isinstance(model, GraphNetwork) else model.requires_grad_()).eval()
    except PolyboundError as error:
        raise FileFormatError(f"{path}: not the graph of a polynomial network ({reason(error)})") from error


def read_metadata(path: str | PathLike[str]) -> dict[str, str]:
    """All metadata of a safetensors file.

    Raises:
        FileFormatError: the file is truncated or damaged.
    """
    try:
        with safe_open(Path(path), framework="pt") as file:
            return dict(file.metadata() or {})
    except SafetensorError as error:
        raise FileFormatError(f"{path}: not a whole safetensors file ({error})") from error


def weights_digest(model: nn.Module) -> str:
    """The SHA-256, in hexadecimal, of a model's weights and what else it is: equal for equal models, wherever they are.

    Of a polynomial network that is its kind and its config, of any other classifier what `repr` says of it.

    >>> import polybound as pb
    >>> weights_digest(pb.CCP(4, 3, 2, degree=2, seed=0)) == weights_digest(pb.CCP(4, 3, 2, degree=2, seed=0))
    True
    """
    about = repr(model)
    if isinstance(model, PolynomialNetwork):
        model = model.stored()
        about = json.dumps([type(model).__name__, model.config()], sort_keys=True)
    digest = hashlib.sha256(about.encode())
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        # As bytes, since numpy has no bfloat16.
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
