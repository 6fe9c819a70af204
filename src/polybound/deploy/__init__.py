"""Networks as ONNX files, properties as VNN-LIB, and encrypted inference. Names are loaded when first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from polybound._lazy import lazy

if TYPE_CHECKING:
    from polybound.deploy.encrypted.chain.batch import BatchClient as BatchClient
    from polybound.deploy.encrypted.chain.batch import BatchPlan as BatchPlan
    from polybound.deploy.encrypted.chain.batch import BatchServer as BatchServer
    from polybound.deploy.encrypted.chain.batch import plan_batches as plan_batches
    from polybound.deploy.encrypted.chain.plan import ChainPlan as ChainPlan
    from polybound.deploy.encrypted.client import Answer as Answer
    from polybound.deploy.encrypted.client import Client as Client
    from polybound.deploy.encrypted.client import RemoteClassifier as RemoteClassifier
    from polybound.deploy.encrypted.graph.plan import GraphPlan as GraphPlan
    from polybound.deploy.encrypted.http import serve as serve
    from polybound.deploy.encrypted.plan import Plan as Plan
    from polybound.deploy.encrypted.plan import PublicPlan as PublicPlan
    from polybound.deploy.encrypted.server import Server as Server
    from polybound.deploy.encrypted.server import plan_encryption as plan_encryption
    from polybound.deploy.onnx.export import to_onnx as to_onnx
    from polybound.deploy.onnx.files import OnnxMetadata as OnnxMetadata
    from polybound.deploy.onnx.read import OnnxNetwork as OnnxNetwork
    from polybound.deploy.onnx.read import from_onnx as from_onnx
    from polybound.deploy.onnx.read import read_onnx as read_onnx
    from polybound.deploy.verification import Verdict as Verdict
    from polybound.deploy.verification import export_benchmark as export_benchmark
    from polybound.deploy.verification import robustness_vnnlib as robustness_vnnlib
    from polybound.deploy.verification import verify as verify
    from polybound.deploy.vnnlib import Property as Property
    from polybound.deploy.vnnlib import Region as Region
    from polybound.deploy.vnnlib import read_vnnlib as read_vnnlib

__getattr__, __dir__ = lazy(
    __name__, onnx="onnx", onnxruntime="onnx", tenseal="encrypted", tornado="encrypted", zstandard="encrypted"
)
