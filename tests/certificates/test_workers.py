"""Certificates by several processes: the same as by one, to the last bit, in the same order."""

import pytest
import torch

import polybound as pb
from polybound.errors import PolyboundError

F64 = torch.float64


@pytest.fixture
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def asked(images=70):
    model = pb.CCP(6, 4, 3, 3, seed=0, dtype=F64)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.0)
    x = torch.rand(images, 6, generator=torch.Generator().manual_seed(1), dtype=F64) * 2 - 1
    return model, x, model(x).argmax(1).detach()


def assert_same(a, b):
    assert (a.status, a.stage, a.method, a.norm, a.proofs) == (b.status, b.stage, b.method, b.norm, b.proofs)
    for name in ("margin", "label", "rival", "eps"):
        assert torch.equal(getattr(a, name), getattr(b, name))
    assert len(a.counterexample) == len(b.counterexample)
    for p, q in zip(a.counterexample, b.counterexample, strict=True):
        assert (p is None) == (q is None) and (p is None or torch.equal(p, q))


def test_workers_decide_the_same(one_thread):
    model, x, y = asked()
    seen = []
    for options in (
        {"eps": torch.linspace(0.01, 0.6, len(x), dtype=F64), "keep": True},
        {"eps": 0.3, "norm": "2"},
        {"eps": 0.1, "method": "crown"},
    ):
        alone = pb.certify(model, x, y, **options)
        several = pb.certify(model, x, y, **options, workers=2, on_progress=lambda *row: seen.append(row))
        assert_same(alone, several)
    assert {"verified", "falsified"} <= set(pb.certify(model, x, y, torch.linspace(0.01, 0.6, len(x))).status)
    assert seen == [(done, 70, "certifying") for done in (32, 64, 70)] * 3


def test_blocks_keep_the_sides_of_boxes_and_the_places_of_proofs():
    model, x, y = asked(40)
    lower, upper = x.clamp(max=0.9) - 0.05, x + 0.02
    lower, upper = lower.clamp(-1, 1), upper.clamp(-1, 1)
    found = pb.certify(model, x, y, box=(lower, upper), keep=True)
    assert torch.equal(found.box[0], lower) and torch.equal(found.box[1], upper) and found.eps is None
    assert {image for image, _ in found.proofs} == set(range(40))
    one = pb.certify(model, x[35:36], y[35:36], box=(lower[35:36], upper[35:36]), keep=True)
    assert one.status == found.status[35:36] and {(35, rival) for _, rival in one.proofs} == {
        key for key in found.proofs if key[0] == 35
    }


def test_no_images_have_no_certificates():
    model, x, y = asked()
    assert len(pb.certify(model, x[:0], y[:0], 0.1, workers=2)) == 0


@pytest.mark.parametrize("workers", [0, -1, 1.5, True, None, "2"])
def test_a_number_of_workers_is_one(workers):
    model, x, y = asked(2)
    with pytest.raises(PolyboundError, match="workers must be a whole number"):
        pb.certify(model, x, y, 0.1, workers=workers)


def test_few_images_of_a_large_network_are_several_blocks():
    model = pb.CCP(784, 40, 3, 2, seed=0, dtype=F64)
    x = torch.rand(10, 784, generator=torch.Generator().manual_seed(0), dtype=F64)
    seen = []
    pb.certify(model, x, model(x).argmax(1), 1e-4, on_progress=lambda done, *_: seen.append(done))
    assert seen == [4, 8, 10]
