"""Saving and loading: bit-exact, never pickled, and every bad file refused in one line."""

import json
import struct
import subprocess
import sys

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from safetensors.torch import save_file

import polybound as pb
from helpers.networks import networks


@given(model=networks(runs=(None, 2)))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_round_trip_is_bit_exact(tmp_path, model):
    path = tmp_path / "model.safetensors"
    model.save(path)
    again = pb.load(path)
    assert type(again) is type(model) and again.config() == model.config()
    for name, tensor in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor)
        assert again.get_parameter(name).requires_grad


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_every_type_survives(tmp_path, dtype):
    model = pb.paper_model("pn-4", shape=(1, 4, 4), dtype=torch.float32).to(dtype)
    model.save(tmp_path / "m.safetensors")
    again = pb.load(tmp_path / "m.safetensors")
    assert again.V.dtype == dtype and torch.equal(again.V, model.V)


def refused(path):
    with pytest.raises(pb.FileFormatError) as caught:
        pb.load(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)
    return str(caught.value)


def test_truncated_and_foreign_files_are_refused(tmp_path):
    path = tmp_path / "bad.safetensors"
    pb.NCP(4, 3, 2, 3, seed=0).save(path)
    content = path.read_bytes()
    foreign = [b"PK\x03\x04 not a model", b"\x80\x04\x95pickle", b"\xff" * 64, struct.pack("<Q", 2**63) + b"{}"]
    for bad in (*foreign, *(content[:length] for length in range(0, len(content), 7))):
        path.write_bytes(bad)
        refused(path)
    save_file({"weight": torch.zeros(2)}, path)
    assert "not a polybound model" in refused(path)


@pytest.mark.parametrize(
    "header",
    [
        "no json",
        "[]",
        '{"kind": "CCP"}',
        '{"kind": "Linear", "config": {}}',
        '{"kind": "CCP", "config": {"features": 4}}',
        '{"kind": "CCP", "config": {"features": 4, "rank": 3, "classes": 2, "degree": 2, "colour": "red"}}',
        '{"kind": "CCP", "config": {"features": 4, "rank": -3, "classes": 2, "degree": 2}}',
        # Sizes that no memory could hold: refused by shape, not by running out of memory.
        '{"kind": "CCP", "config": {"features": 4000000, "rank": 4000000, "classes": 2, "degree": 2}}',
    ],
)
def test_bad_configs_are_refused(tmp_path, header):
    path = tmp_path / "bad.safetensors"
    model = pb.CCP(4, 3, 2, 2)
    save_file(dict(model.state_dict()), path, metadata={"polybound": header})
    refused(path)


def test_tensors_that_do_not_fit_the_config_are_refused(tmp_path):
    path = tmp_path / "bad.safetensors"
    model = pb.CCP(4, 3, 2, 2)
    header = {"polybound": json.dumps({"kind": "CCP", "config": model.config()})}
    V, C = model.V.detach(), model.C.detach()
    both = {"V": V, "C": C}
    for tensors in ({"V": V}, both | {"D": C.clone()}, both | {"C": C[:, :2].clone()}, both | {"C": C.int()}):
        save_file(tensors, path, metadata=header)
        refused(path)


def test_missing_file(tmp_path):
    for path in (tmp_path / "nothing.safetensors", tmp_path):
        with pytest.raises(FileNotFoundError):
            pb.load(path)


def test_a_full_disk_leaves_the_old_file_whole(tmp_path):
    path = tmp_path / "m.safetensors"
    pb.CCP(4, 3, 2, 2, seed=0).save(path)
    code = (
        "import resource, sys, polybound as pb\n"
        "model = pb.CCP(400, 30, 20, 2)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))\n"  # writing on fails as it does on a full disk
        "try:\n    model.save(sys.argv[1])\nexcept OSError:\n    print('refused')\n"
    )
    result = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=120)
    assert result.stdout == "refused\n", result.stderr
    assert torch.equal(pb.load(path).V, pb.CCP(4, 3, 2, 2, seed=0).V)
    assert [p.name for p in tmp_path.iterdir()] == ["m.safetensors"]


def test_the_digest_is_that_of_kind_config_and_weights(tmp_path):
    V = torch.arange(6, dtype=torch.float64).reshape(2, 1, 3) / 4
    C = torch.tensor([[1.0], [-0.5]], dtype=torch.float64)
    model = pb.CCP.from_factors(V, C)
    # Files of certificates and of scores hold it: it never changes.
    known = "d39fd73b28c6e72c8b4001c1158c9acb41667b62c4fa14e50a4523287cee11fc"
    assert pb.models.weights_digest(model) == known
    model.save(tmp_path / "m.safetensors")
    assert pb.models.weights_digest(pb.load(tmp_path / "m.safetensors")) == known
    changed = [pb.CCP.from_factors(V.float(), C.float()), pb.CCP.from_factors(V, -C), pb.stack([model])]
    assert len({known, *(pb.models.weights_digest(other) for other in changed)}) == 4
