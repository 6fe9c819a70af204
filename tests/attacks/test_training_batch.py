"""Adversarial examples inside of training: the formula, groups of runs, shared passes, what is random."""

import pytest
import torch
import torch.nn.functional as F

import polybound as pb
from helpers.networks import F64
from polybound.attacks import APGD, FGSM, PGD, TPGD, Classifier, RandomSearch, Square, adversarial_batch
from polybound.errors import PolyboundError

SHAPE, RUNS, BATCH = (1, 6, 6), 4, 16
CLIP = {"sound": (-1.0, 1.0), "published": (0.0, 1.0)}
MODELS = {
    "ccp": lambda **kw: pb.CCP(36, 5, 10, 4, shape=SHAPE, **kw),
    "product": lambda **kw: pb.CCP(36, 5, 10, 3, "product", shape=SHAPE, **kw),
    "ncp": lambda **kw: pb.NCP(36, 5, 10, 3, shape=SHAPE, **kw),
    "conv": lambda **kw: pb.ConvCCP(SHAPE, 3, 10, 2, 3, pre=3, pool=(1,), **kw),
}
ATTACKS = {
    "fgsm": FGSM(0.1),
    "fgsm 2": FGSM(0.5, norm="2"),
    "pgd": PGD(0.1, 4),
    "pgd from the image": PGD(0.1, 4, random_start=False),
    "pgd early": PGD(0.3, 4, early_stop=True),
    "pgd again": PGD(0.3, 3, restarts=3),
    "pgd 2": PGD(0.5, 3, norm="2"),
    "tpgd": TPGD(0.1, 3, 0.05),
    "apgd": APGD(0.2, 8),
    "apgd 2": APGD(0.5, 5, norm="2", loss="dlr", restarts=2),
    "apgdt": pb.APGDT(0.2, 3, targets=3),
    "random": RandomSearch(0.2, 4),
    "random 2": RandomSearch(0.5, 3, norm="2"),
    "square": Square(0.2, 6),
}


def batches(groups, seed=0, dtype=F64):
    generator = torch.Generator().manual_seed(seed)
    x = 2 * torch.rand(groups, BATCH, 36, generator=generator, dtype=F64) - 1
    return x.to(dtype), torch.randint(10, (groups, BATCH), generator=generator)


def generators(groups):
    return [torch.Generator().manual_seed(100 + group) for group in range(groups)]


def ascent(model, x, y, eps, steps, size, clip):
    """The formula for one run, in float64, by autograd: the points, and where no step had a gradient near zero."""
    z, steep = x, torch.ones_like(x, dtype=torch.bool)
    for _ in range(steps):
        leaf = z.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(F.cross_entropy(model(leaf), y, reduction="sum"), leaf)
        steep &= gradient.abs() > 1e-9 * gradient.abs().amax(-1, keepdim=True)
        z = torch.minimum(torch.maximum(z + size * gradient.sign(), x - eps), x + eps).clamp(*clip)
    return z, steep


@pytest.mark.parametrize("protocol", ["sound", "published"])
@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("kind", MODELS)
def test_it_is_the_formula(kind, groups, protocol):
    model = MODELS[kind](runs=RUNS, seed=0, dtype=F64)
    x, y = batches(groups)
    for attack, steps, size in ((FGSM(0.1), 1, 0.1), (PGD(0.1, 20, 0.01, random_start=False), 20, 0.01)):
        found = adversarial_batch(attack, Classifier(model, SHAPE), x, y, domain=(-1, 1), protocol=protocol)
        assert found.shape == (RUNS, BATCH, 36)
        for e in range(RUNS):
            group = e * groups // RUNS
            wanted, steep = ascent(model.run(e), x[group], y[group], 0.1, steps, size, CLIP[protocol])
            # From the second step on, a flat pixel has a say in the gradients of all others of its image.
            sure = steep if steps == 1 else steep.all(-1, keepdim=True).expand_as(steep)
            assert sure.float().mean() > 0.9
            torch.testing.assert_close(found[e][sure], wanted[sure], rtol=0, atol=1e-12)


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("name", ATTACKS)
def test_each_run_gets_what_it_would_get_alone(name, kind, groups):
    model, attack = MODELS[kind](runs=RUNS, seed=0, dtype=F64), ATTACKS[name]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.0)  # away from the initial weights, for which the classes are all but tied
    x, _ = batches(groups, seed=1)
    # The first run of each group is right everywhere, the others are wrong here and there.
    y = torch.stack([model.run(g * RUNS // groups)(x[g]).argmax(-1) for g in range(groups)])
    before = x.clone()
    together = Classifier(model, SHAPE)
    found = adversarial_batch(attack, together, x, y, domain=(-1, 1), generators=generators(groups))
    assert torch.equal(x, before) and found.shape == (RUNS, BATCH, 36)
    for e in range(RUNS):
        group = slice(e * groups // RUNS, e * groups // RUNS + 1)
        mine, options = Classifier(model.run(e), SHAPE), {"domain": (-1, 1), "generators": generators(groups)[group]}
        alone = adversarial_batch(attack, mine, x[group], y[group], **options)
        torch.testing.assert_close(found[e : e + 1], alone, rtol=0, atol=1e-9)
    # A search that does not succeed returns the image.
    assert (found[0] - x[0]).abs().max() > 0.01 or (kind != "ccp" and isinstance(attack, APGD | RandomSearch))


@pytest.mark.parametrize(
    ("attack", "passes"),
    [
        (FGSM(0.1), [2]),
        (PGD(0.1, 3, random_start=False), [2, 4, 4]),
        (PGD(0.1, 3), [2, 4, 4]),
        (TPGD(0.1, 2), [2, 2, 4]),
    ],
)
@pytest.mark.parametrize("kind", ["ccp", "product", "ncp"])
def test_runs_share_a_pass_until_their_points_differ(kind, attack, passes, monkeypatch):
    classifier, seen = Classifier(MODELS[kind](runs=RUNS, seed=0), SHAPE), []
    logits = classifier.form.logits
    monkeypatch.setattr(classifier.form, "logits", lambda x: (seen.append(len(x)), logits(x))[1])
    x, y = batches(2, dtype=torch.float32)
    adversarial_batch(attack, classifier, x, y, domain=(-1, 1), generators=generators(2))
    assert seen == passes


def test_points_are_those_of_the_attack_on_the_same_images():
    model = MODELS["ccp"](seed=0)
    x, y = batches(1, dtype=torch.float32)
    for protocol in ("sound", "published"):
        inside = adversarial_batch(FGSM(0.1), Classifier(model, SHAPE), x, y, domain=(-1, 1), protocol=protocol)
        outside = FGSM(0.1)(model, x[0].view(-1, *SHAPE), y[0], domain=(-1, 1), protocol=protocol)
        assert torch.equal(inside[0], outside.flatten(1))


def test_random_numbers_need_generators():
    x, y = batches(2, dtype=torch.float32)
    classifier = Classifier(MODELS["ccp"](runs=RUNS, seed=0), SHAPE)
    for given in ((), generators(1)):
        with pytest.raises(PolyboundError, match="random numbers for 2 batches need a generator for each"):
            adversarial_batch(PGD(0.1, 2), classifier, x, y, domain=(-1, 1), generators=given)
