"""Out of the lab: networks as ONNX, questions as VNN-LIB, encrypted inference. What needs an extra says which one."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from polybound.errors import PolyboundError

if TYPE_CHECKING:
    from polybound.deploy.benchmark import export_benchmark, robustness_vnnlib
    from polybound.deploy.encrypted.batch import BatchClient, BatchPlan, BatchServer, plan_batches
    from polybound.deploy.encrypted.client import Answer, Client, RemoteClassifier
    from polybound.deploy.encrypted.http import serve
    from polybound.deploy.encrypted.plan import Plan, PublicPlan, plan_encryption
    from polybound.deploy.encrypted.server import Server
    from polybound.deploy.onnx.export import to_onnx
    from polybound.deploy.onnx.files import OnnxMetadata
    from polybound.deploy.onnx.read import OnnxNetwork, from_onnx, read_onnx
    from polybound.deploy.verification import Verdict, verify
    from polybound.deploy.vnnlib import Property, Region, read_vnnlib

__all__ = [
    "Answer",
    "BatchClient",
    "BatchPlan",
    "BatchServer",
    "Client",
    "OnnxMetadata",
    "OnnxNetwork",
    "Plan",
    "Property",
    "PublicPlan",
    "Region",
    "RemoteClassifier",
    "Server",
    "Verdict",
    "export_benchmark",
    "from_onnx",
    "plan_batches",
    "plan_encryption",
    "read_onnx",
    "read_vnnlib",
    "robustness_vnnlib",
    "serve",
    "to_onnx",
    "verify",
]

_HOME = {
    "Answer": "encrypted.client",
    "BatchClient": "encrypted.batch",
    "BatchPlan": "encrypted.batch",
    "BatchServer": "encrypted.batch",
    "Client": "encrypted.client",
    "OnnxMetadata": "onnx.files",
    "OnnxNetwork": "onnx.read",
    "Plan": "encrypted.plan",
    "Property": "vnnlib",
    "PublicPlan": "encrypted.plan",
    "Region": "vnnlib",
    "RemoteClassifier": "encrypted.client",
    "Server": "encrypted.server",
    "Verdict": "verification",
    "export_benchmark": "benchmark",
    "from_onnx": "onnx.read",
    "plan_batches": "encrypted.batch",
    "plan_encryption": "encrypted.plan",
    "read_onnx": "onnx.read",
    "read_vnnlib": "vnnlib",
    "robustness_vnnlib": "benchmark",
    "serve": "encrypted.http",
    "to_onnx": "onnx.export",
    "verify": "verification",
}

_EXTRAS = {
    "onnx": ("onnx", "ONNX files need"),
    "onnxruntime": ("onnx", "running ONNX files needs"),
    "tenseal": ("encrypted", "encrypted inference needs"),
    "tornado": ("encrypted", "serving encrypted inference needs"),
    "zstandard": ("encrypted", "encrypted inference needs"),
}
"""The packages of the extras: the extra's name, and what needs the package."""


def __getattr__(name: str) -> Any:
    """Names are loaded when first used: what lies under them needs extras."""
    if name not in _HOME:
        raise AttributeError(f"module 'polybound.deploy' has no attribute {name!r}")
    try:
        value = globals()[name] = getattr(import_module(f"polybound.deploy.{_HOME[name]}"), name)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _EXTRAS:
            raise
        extra, who = _EXTRAS[package]
        raise PolyboundError(f"{who} {package}: pip install 'polybound[{extra}]'") from None
    return value


def __dir__() -> list[str]:
    return list(__all__)
