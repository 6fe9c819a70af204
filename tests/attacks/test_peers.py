"""Other libraries as judges: on the same model and images, equal settings give equal robust accuracies."""

import copy
import sys
import warnings

import pytest
import torch

import polybound as pb
from helpers.errors import refuses
from helpers.networks import Written
from polybound.attacks import FGSM, PGD, TPGD, parse_attack
from polybound.errors import PolyboundError

TOLERANCE = 0.005


def peer(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(name)


def scaled_to_units(model):
    """The model, for images in [0, 1]."""
    return Written(lambda m, x: m.inner(2 * x - 1), inner=model)


@pytest.fixture(scope="module")
def subject():
    """A trained model and enough images for half a point to mean something."""
    train, test = pb.data.load_digits("train"), pb.data.load_digits("test")
    model = pb.paper_model("pn-4", shape=train.shape, seed=0)
    pb.fit(model, train, "paper", epochs=15, learning_rate=0.02, milestones=())
    x, y = torch.cat([train.x, test.x]), torch.cat([train.y, test.y])
    return model, x, y


def accuracy(model, images, y):
    return (model(images).argmax(-1) == y).float().mean().item()


@pytest.mark.parametrize("eps", [0.05, 0.2])
def test_torchattacks(subject, eps):
    suite = peer("torchattacks")
    model, x, y = subject
    scaled, images = scaled_to_units(model), (x + 1) / 2
    pairs = [
        (FGSM(eps), suite.FGSM(scaled, eps=eps / 2)),
        (PGD(eps, 20, eps / 10), suite.PGD(scaled, eps=eps / 2, alpha=eps / 20, steps=20)),
        (TPGD(eps, 5, eps / 4), suite.TPGD(scaled, eps=eps / 2, alpha=eps / 8, steps=5)),
    ]
    for ours, theirs in pairs:
        # Random starts move the accuracy of so few images by a point; their mean does not.
        seeds = range(1 if ours.kind == "fgsm" else 6)
        mine = sum(accuracy(model, ours(model, x, y, domain=(-1, 1), seed=s), y) for s in seeds) / len(seeds)
        judged = sum(accuracy(scaled, theirs(images, y), y) for _ in seeds) / len(seeds)
        assert abs(mine - judged) <= TOLERANCE, ours.name


def test_torchattacks_under_the_published_protocol(subject):
    suite = peer("torchattacks")
    model, x, y = subject
    for ours, theirs in [
        (FGSM(0.1), suite.FGSM(model, eps=0.1)),
        (PGD(0.1, 20, 0.01), suite.PGD(model, eps=0.1, alpha=0.01, steps=20)),
        (TPGD(8 / 255, 1), suite.TPGD(model, eps=8 / 255, alpha=2 / 255, steps=1)),
    ]:
        mine = accuracy(model, ours(model, x, y, domain=(-1, 1), protocol="published"), y)
        # That library looks at no normalisation unless told to: data in [-1, 1] is clipped to [0, 1].
        assert abs(mine - accuracy(model, theirs(x, y), y)) <= TOLERANCE, ours.name


def test_torchattacks_on_a_network_that_is_too_sure_of_itself(subject):
    """Its gradients are lost in rounding: the published protocol falls for that as the library does, the sound not."""
    suite = peer("torchattacks")
    model, x, y = subject
    sure = copy.deepcopy(model)
    with torch.no_grad():
        sure.C *= 30.0
    step, judge, some = FGSM(0.2), suite.FGSM(sure, eps=0.2), slice(200)
    # One by one, as the mean over a batch makes small gradients smaller still.
    theirs = torch.cat([judge(image, label) for image, label in zip(x[some].split(1), y[some].split(1), strict=True)])
    published = step(sure, x[some], y[some], domain=(-1, 1), protocol="published")
    assert ((published - theirs).abs() > 1e-4).float().mean() < 0.001
    scaled = scaled_to_units(sure)
    fooled = accuracy(scaled, suite.FGSM(scaled, eps=0.1)((x + 1) / 2, y), y)
    assert accuracy(sure, step(sure, x, y, domain=(-1, 1)), y) < fooled - 0.1


def test_torchattacks_targeted_apgd(subject):
    suite = peer("torchattacks")
    model, x, y = subject
    clean = model(x).argmax(-1) == y
    for protocol in ("sound", "published"):
        wrapped = scaled_to_units(model) if protocol == "sound" else model
        images, eps = ((x + 1) / 2, 0.1) if protocol == "sound" else (x, 0.2)
        theirs = suite.APGDT(wrapped, eps=eps, steps=1)(images, y)
        ours = parse_attack("apgdt-1:eps=0.2")(model, x, y, domain=(-1, 1), protocol=protocol)
        mine = ((model(ours).argmax(-1) == y) & clean).float().mean()
        assert abs(mine - ((wrapped(theirs).argmax(-1) == y) & clean).float().mean()) <= 0.01


@pytest.mark.parametrize(("norm", "eps"), [("inf", 0.1), ("2", 0.5)])
@pytest.mark.filterwarnings("ignore")
def test_foolbox(subject, norm, eps):
    suite = peer("foolbox")
    model, x, y = subject
    attack = getattr(suite.attacks, "LinfPGD" if norm == "inf" else "L2PGD")(abs_stepsize=eps / 10, steps=20)
    _, theirs, _ = attack(suite.PyTorchModel(model.eval(), bounds=(-1, 1)), x, y, epsilons=eps)
    ours = PGD(eps, 20, eps / 10, norm=norm)(model, x, y, domain=(-1, 1))
    assert abs(accuracy(model, ours, y) - accuracy(model, theirs, y)) <= TOLERANCE
    adapted = parse_attack(f"foolbox-{eps}:norm={norm}")(model, x, y, domain=(-1, 1))
    assert abs(accuracy(model, ours, y) - accuracy(model, adapted, y)) <= TOLERANCE


@pytest.mark.parametrize("name", ["foolbox-0.1:steps=2", "foolbox-0.2:attack=deepfool:steps=3"])
def test_what_another_library_finds_does_not_depend_on_the_batch(subject, name):
    peer("foolbox")
    model, x, y = (part[:160] if isinstance(part, torch.Tensor) else part for part in subject)
    attack, domain = parse_attack(name), (-1, 1)
    whole = attack(model, x, y, domain=domain)
    parts = [attack(model, x[at : at + 64], y[at : at + 64], domain=domain, start=at) for at in (0, 64, 128)]
    assert torch.equal(whole, torch.cat(parts))


@pytest.mark.slow
def test_autoattack_is_the_stronger_one_but_not_by_much(subject):
    peer("pyautoattack")
    model, x, y = (part[:64] if isinstance(part, torch.Tensor) else part for part in subject)
    both = pb.stack([model, model])
    found = parse_attack("autoattack-0.1:version=apgd")(both, x, y, domain=(-1, 1))
    assert found.shape == (2, *x.shape) and (found - x).abs().max() <= 0.1
    theirs = accuracy(model, found[0], y)
    ours = parse_attack("apgd-0.1-50")(model, x, y, domain=(-1, 1))
    assert theirs <= accuracy(model, ours, y) + 1e-9
    assert accuracy(model, ours, y) <= theirs + 0.04
    again = parse_attack("autoattack-0.1:version=apgd")(model, x, y, domain=(-1, 1))
    assert accuracy(model, again, y) == theirs


def test_outside_suites_know_no_published_protocol(subject):
    model, *_ = subject
    test = pb.data.load_digits("test")
    result = pb.evaluate(model, test, "fgsm-0.1,autoattack-0.1", protocol="published", limit=5)
    assert [row["attack"] for row in result.counted("robust")] == ["clean", "fgsm-0.1"]
    assert any("knows the sound protocol only" in note for note in result.notes)
    with pytest.raises(PolyboundError, match="sound protocol only"):
        parse_attack("autoattack-0.1")(model, test.x, test.y, domain=(-1, 1), protocol="published")


@pytest.mark.parametrize(("package", "name"), [("pyautoattack", "autoattack-0.1"), ("foolbox", "foolbox-0.1")])
def test_a_missing_suite_is_said(subject, monkeypatch, package, name):
    model, x, y = subject
    monkeypatch.setitem(sys.modules, package, None)
    refuses(f"needs {package}: pip install", parse_attack(name), model, x[:2], y[:2], domain=(-1, 1))
