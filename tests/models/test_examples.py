"""Trained networks that come with the package: the deep ones are what their origin says."""

import re
from importlib.resources import files

import pytest
import torch

import polybound as pb
from polybound.models import EXAMPLES, example_origin
from polybound.runs import Spec

DEEP = [name for name in EXAMPLES if name.endswith("-polynet")]


@pytest.mark.parametrize("name", DEEP)
def test_a_deep_example_is_a_polynet_of_its_spec(name, cli):
    network, spec = pb.example(name), Spec.from_dict(example_origin(name)["spec"])
    assert isinstance(network, pb.PolyNet) and not network.training
    assert {parameter.dtype for parameter in network.parameters()} == {torch.float32}
    like = pb.paper_model(spec.model.name, shape=network.shape, parameters=dict(spec.model.parameters))
    assert network.config() == like.config() and spec.data.digest == pb.data.digest_of(spec.data.name)
    assert files("polybound.models").joinpath("trained", f"{name}.safetensors").stat().st_size <= 2_000_000
    assert network.degree == 2 ** sum(network.blocks) == network.graph().degree


def test_info_prints_the_degree(cli):
    assert cli("info", "mnist-polynet", "--json").json["degree"] == pb.example("mnist-polynet").degree == 8


@pytest.mark.parametrize("name", DEEP)
def test_a_deep_example_classifies_as_its_origin_says(name):
    origin = example_origin(name)
    dataset = origin["spec"]["data"]["name"]
    if pb.data.missing(dataset):
        pytest.skip(f"no {dataset}")
    test = pb.data.load(dataset, "test")
    network = pb.example(name)
    with torch.no_grad():
        right = int((network(test.x[:200]).argmax(1) == test.y[:200]).sum())
    stated = int(re.search(r"(\d+) of the first 200", origin["note"]).group(1))
    assert abs(right - stated) <= 1  # where two logits nearly agree, processors may not
