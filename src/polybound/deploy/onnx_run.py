"""ONNX files run by onnxruntime, if it is there."""

from __future__ import annotations

from os import PathLike

import torch
from torch import Tensor

__all__ = ["run_onnx"]


def run_onnx(path: str | PathLike[str], x: Tensor) -> Tensor | None:
    """The outputs of an ONNX file for a batch, float64; None where onnxruntime is missing or cannot run the file.

    The values are computed in the file's own precision.
    """
    try:
        import onnxruntime
    except ModuleNotFoundError:
        return None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        [source] = session.get_inputs()
        array = x.double().numpy() if source.type == "tensor(double)" else x.float().numpy()
        [outputs] = session.run(None, {source.name: array})
    except Exception:  # its errors have no common base; the file is read in any case, only not run
        return None
    return torch.from_numpy(outputs).double().reshape(len(x), -1)
