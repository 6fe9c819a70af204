"""Laws of all attacks: the ball and the domain to the last bit, stacks, seeds, batches; what they find; bad input."""

from fractions import Fraction

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

import polybound as pb
from helpers.errors import refuses
from helpers.networks import F64, Written, networks
from helpers.profiles import examples
from polybound.attacks import APGD, APGDT, FGSM, PGD, TPGD, RandomSearch, Square, is_correct, parse_attack
from polybound.attacks.classifier import Classifier
from polybound.attacks.losses import DLR, KL, CrossEntropy, TargetedDLR, cross_entropy, divergence

SMALL = {
    "fgsm": lambda eps, norm: FGSM(eps, norm=norm),
    "pgd": lambda eps, norm: PGD(eps, 3, norm=norm),
    "pgd from the image": lambda eps, norm: PGD(eps, 3, random_start=False, norm=norm),
    "pgd again": lambda eps, norm: PGD(eps, 2, restarts=3, norm=norm),
    "pgd early": lambda eps, norm: PGD(eps, 4, early_stop=True, norm=norm),
    "tpgd": lambda eps, norm: TPGD(eps, 2, eps / 2, norm=norm),
    "apgd ce": lambda eps, norm: APGD(eps, 6, norm=norm),
    "apgd dlr": lambda eps, norm: APGD(eps, 6, loss="dlr", restarts=2, norm=norm),
    "apgdt": lambda eps, norm: APGDT(eps, 3, norm=norm),
    "random": lambda eps, norm: RandomSearch(eps, 3, norm=norm),
    "square": lambda eps, norm: Square(eps, 4),
}
DOMAINS = [(-1.0, 1.0), (0.0, 1.0), (-0.3, 0.7), (-1e-3, 250.0)]
RADII = [0.0, 1e-30, 1e-9, 0.01, 0.1, 8 / 255, 0.3, 7.0]


def images(model, n, domain, seed, dtype):
    """Points of the domain, many of them on its border, exactly inside in this type."""
    lower, upper = domain
    generator = torch.Generator().manual_seed(seed)
    x = lower + (upper - lower) * (1.4 * torch.rand(n, *model.shape, generator=generator, dtype=F64) - 0.2)
    x = x.clamp(lower, upper).to(dtype)
    x = torch.where(x.double() > upper, torch.nextafter(x, torch.full_like(x, -torch.inf)), x)
    return torch.where(x.double() < lower, torch.nextafter(x, torch.full_like(x, torch.inf)), x)


def exact(tensor):
    return [Fraction(value) for value in tensor.double().flatten().tolist()]


def assert_inside(found, x, eps, norm, domain):
    values, radius = exact(found), Fraction(eps)
    assert all(Fraction(domain[0]) <= value <= Fraction(domain[1]) for value in values)
    for run in found if found.ndim > x.ndim else [found]:
        for after, before in zip(run, x, strict=True):
            steps = [abs(a - b) for a, b in zip(exact(after), exact(before), strict=True)]
            if norm == "inf":
                assert max(steps) <= radius
            else:
                assert sum(step * step for step in steps) <= radius * radius


@pytest.mark.parametrize("kind", SMALL)
@settings(max_examples=examples(30))
@given(
    networks(runs=(None, 2)),
    st.sampled_from(["inf", "2"]),
    st.sampled_from([torch.float32, F64]),
    st.sampled_from(RADII),
    st.sampled_from(DOMAINS),
    st.integers(0, 99),
)
def test_no_example_leaves_its_ball_or_the_domain(kind, model, norm, dtype, eps, domain, seed):
    norm = "inf" if kind == "square" else norm
    x = images(model, 3, domain, seed, dtype)
    y = torch.randint(model.classes, (3,))
    model = model.to(dtype if seed % 2 else torch.float32)
    found = SMALL[kind](eps, norm)(model, x, y, domain=domain, seed=seed)
    assert found.dtype == dtype
    assert found.shape == (x.shape if model.runs is None else (model.runs, *x.shape))
    assert_inside(found, x, eps, norm, domain)


@pytest.mark.parametrize("kind", SMALL)
@settings(max_examples=examples(15))
@given(networks(runs=(3,)), st.sampled_from(["inf", "2"]), st.integers(0, 99))
def test_a_stack_is_its_members(kind, model, norm, seed):
    attack = SMALL[kind](0.2, "inf" if kind == "square" else norm)
    x, y = images(model, 3, (-1.0, 1.0), seed, F64), torch.randint(model.classes, (3,))
    own = torch.stack([images(model, 3, (-1.0, 1.0), seed + e, F64) for e in range(3)])
    shared = attack(model, x, y, domain=(-1, 1), seed=seed)
    separate = attack(model, own, y, domain=(-1, 1), seed=seed)
    for e in range(3):
        for found, images_ in ((shared[e], x), (separate[e], own[e])):
            alone = attack(model.run(e), images_, y, domain=(-1, 1), seed=seed)
            # A gradient of zero in exact arithmetic has a sign by rounding, which may differ, in that pixel only.
            assert not (((found - alone).abs() > 1e-9) & ~flat(model.run(e), images_, y)).any()


def flat(model, x, y):
    """The pixels by which the odds of the label have no gradient, up to rounding; those of each image on their own."""
    leaf = x.clone().requires_grad_()
    logits = model(leaf)
    # Not the cross-entropy: where the model is sure of itself, that has no gradient by any pixel.
    rivals = logits.scatter(1, y.unsqueeze(1), -torch.inf).logsumexp(1) if model.classes > 1 else 0.0
    (gradient,) = torch.autograd.grad((rivals - logits.gather(1, y.unsqueeze(1)).squeeze(1)).sum(), leaf)
    steepest = gradient.abs().flatten(1).amax(1).view(-1, *(1,) * (x.ndim - 1))
    return gradient.abs() <= 1e-12 * steepest


@pytest.fixture(scope="module")
def digits():
    train, test = pb.data.load_digits("train"), pb.data.load_digits("test")
    models = [pb.paper_model("pn-4", shape=train.shape, seed=seed) for seed in (0, 1)]
    for model in models:
        pb.fit(model, train, "paper", epochs=15, learning_rate=0.02, milestones=())
    return models, test


def robust(model, data, attack, **options):
    found = attack(model, data.x, data.y, domain=data.domain, **options)
    return (model(found).argmax(-1) == data.y).float().mean().item()


def test_closed_forms_and_autograd_find_the_same(digits):
    (model, _), data = digits

    plain = Written(lambda m, x: m.inner(x), inner=model)
    for attack in (FGSM(0.1), PGD(0.1, 5), TPGD(0.1, 2, 0.05), APGD(0.1, 5), APGDT(0.1, 3), Square(0.1, 5)):
        by_hand = attack(model, data.x, data.y, domain=data.domain)
        by_graph = attack(plain, data.x, data.y, domain=data.domain)
        assert ((by_hand - by_graph).abs() > 1e-5).float().mean() < 1e-3


def test_stronger_attacks_are_stronger(digits):
    (model, _), data = digits
    clean = (model(data.x).argmax(-1) == data.y).float().mean().item()
    fgsm, pgd = robust(model, data, FGSM(0.2)), robust(model, data, PGD(0.2, 20))
    assert clean > 0.9 > fgsm > pgd
    assert robust(model, data, PGD(0.2, 20, early_stop=True)) <= pgd
    assert robust(model, data, PGD(0.2, 20, restarts=4)) <= pgd
    assert robust(model, data, APGD(0.2, 50)) <= pgd + 0.01
    assert robust(model, data, APGDT(0.2, 20)) <= pgd + 0.01
    assert fgsm <= robust(model, data, Square(0.2, 100)) < clean
    assert robust(model, data, Square(0.2, 100)) <= robust(model, data, RandomSearch(0.2, 20)) <= clean
    assert robust(model, data, PGD(0.2, 20, norm="2")) > robust(model, data, PGD(1.0, 20, norm="2"))


def test_the_square_attack_keeps_what_it_has_found():
    torch.manual_seed(0)
    x, seen = 2 * torch.rand(64, 8) - 1, torch.zeros(64, dtype=torch.bool)

    class Watched(nn.Sequential):
        """Notes which images were misclassified in any query."""

        def forward(self, images):
            logits = super().forward(images)
            if len(logits) == len(seen):
                seen.logical_or_(logits.argmax(1) != y)
            return logits

    y = torch.zeros(64, dtype=torch.int64)
    model = Watched(nn.Linear(8, 5))
    y = model(x).argmax(1)
    seen.zero_()
    found = Square(0.4, 60)(model, x, y, domain=(-1, 1))
    assert 0 < int(seen.sum()) < 64
    assert torch.equal(model(found).argmax(1) != y, seen)


def test_results_depend_on_the_seed_and_on_nothing_else(digits):
    (model, _), data = digits
    attack = PGD(0.1, 3)
    found = attack(model, data.x, data.y, domain=data.domain, seed=5)
    assert torch.equal(found, attack(model, data.x, data.y, domain=data.domain, seed=5))
    assert not torch.equal(found, attack(model, data.x, data.y, domain=data.domain, seed=6))
    part = attack(model, data.x[128:200], data.y[128:200], domain=data.domain, seed=5, start=128)
    assert ((part - found[128:200]).abs() > 1e-5).float().mean() < 1e-3


def test_early_stop_keeps_the_first_point_that_is_misclassified(digits):
    models, data = digits
    both = pb.stack(models)
    plain = PGD(0.2, 20, random_start=False)
    found = PGD(0.2, 20, random_start=False, early_stop=True)(both, data.x, data.y, domain=data.domain)
    last = plain(both, data.x, data.y, domain=data.domain)
    for e, model in enumerate(models):
        wrong = model(found[e]).argmax(-1) != data.y
        assert (wrong | (model(last[e]).argmax(-1) == data.y)).all()
        already = model(data.x).argmax(-1) != data.y
        assert torch.equal(found[e][already], data.x[already])
        assert torch.allclose(found[e][~wrong], last[e][~wrong], atol=1e-5)


def test_a_saturated_classifier_is_broken_all_the_same(digits):
    (model, _), data = digits
    sure = pb.stack([model]).run(0)
    with torch.no_grad():
        sure.C *= 1e6  # the same classifier, but its cross-entropy has no gradient in float32
    x = data.x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(nn.functional.cross_entropy(sure(x), data.y), x)
    right = sure(data.x).argmax(-1) == data.y
    assert (gradient[right] == 0).all()
    for attack in (FGSM(0.2), PGD(0.2, 10), APGD(0.2, 10), APGD(0.2, 10, loss="dlr"), APGDT(0.2, 5)):
        assert robust(sure, data, attack) == pytest.approx(robust(model, data, attack), abs=0.03)


def test_a_constant_classifier_and_one_that_overflows():
    x, y = torch.rand(5, 4), torch.zeros(5, dtype=torch.int64)
    constant = Written(lambda m, x: x.new_tensor([1.0, 0.0, 0.0]).expand(len(x), 3))
    for attack in (FGSM(0.1), PGD(0.1, 3), APGD(0.1, 5, loss="dlr"), APGDT(0.1, 2), TPGD(0.1, 2)):
        found = attack(constant, x, y, domain=(0, 1))
        assert torch.isfinite(found).all()
    wild = pb.CCP(4, 3, 3, degree=4, seed=0)
    with torch.no_grad():
        wild.V *= 1e20
    for name in ("fgsm-0.1", "pgd-0.1-3-0.1", "apgd-0.1-3", "apgdt-2", "tpgd-2", "square-0.1-5"):
        found = parse_attack(name)(wild, x, y, domain=(0, 1))
        assert torch.isfinite(found).all()
    with Classifier(wild, (4,)) as victim:
        assert not victim.correct(x.unsqueeze(0), y).any()


def test_few_classes_are_said():
    x, y = torch.rand(8, 4), torch.randint(2, (8,))
    model = pb.CCP(4, 3, 2, degree=2, seed=0)
    for attack in (APGD(0.3, 5, loss="dlr"), APGDT(0.3, 5)):
        assert "plain margin" in attack.caveats(2)[0] and not attack.caveats(10)
        assert attack(model, x, y, domain=(0, 1)).shape == x.shape


def test_the_model_is_left_as_it_was(digits):
    (model, _), data = digits
    model.train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    PGD(0.1, 2)(model, data.x[:5], data.y[:5], domain=data.domain)
    assert model.training and all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert PGD(0.1, 2)(model, data.x[:0], data.y[:0], domain=data.domain).shape == (0, *data.shape)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.full((2, 4), 1.1)}, "outside of the domain"),
        ({"x": torch.zeros(2, 4, dtype=torch.int64)}, "floating-point"),
        ({"x": torch.zeros(3, 4)}, "2 labels need images"),
        ({"x": torch.zeros(2, 5)}, "inputs must have shape"),
        ({"y": torch.tensor([0, 3])}, "label 3 is out of range for a model with 3 classes"),
        ({"y": torch.tensor([0.0, 1.0])}, "whole numbers"),
        ({"domain": (1, 0)}, "a domain is"),
        ({"protocol": "honest"}, "protocol must be"),
    ],
)
def test_bad_input(change, message):
    given_ = {"x": torch.zeros(2, 4), "y": torch.tensor([0, 1]), "domain": (0, 1), "protocol": "sound"} | change
    refuses(message, FGSM(0.1), pb.CCP(4, 3, 3, degree=2, seed=0), given_.pop("x"), given_.pop("y"), **given_)


def test_a_module_that_is_no_classifier():
    refuses("does not take inputs", FGSM(0.1), nn.Linear(3, 2), torch.zeros(2, 4), torch.tensor([0, 1]), domain=(0, 1))
    refuses("must give", FGSM(0.1), nn.Flatten(0), torch.zeros(2, 4), torch.tensor([0, 1]), domain=(0, 1))


@pytest.mark.parametrize(
    "make",
    [
        lambda: FGSM(-0.1),
        lambda: FGSM(0.1, norm="1"),
        lambda: PGD(0.1, 0),
        lambda: PGD(0.1, 5, -1.0),
        lambda: APGD(0.1, loss="mse"),
        lambda: Square(0.1, norm="2"),
        lambda: RandomSearch(0.1, 0),
    ],
)
def test_bad_settings(make):
    refuses("", make)


E, N = 2, 6


def textbook_dlr(z, y, tiny=1e-12):
    ordered = z.sort(descending=True).values
    rival = max(z[j] for j in range(len(z)) if j != y)
    return -(z[y] - rival) / (ordered[0] - ordered[2] + tiny)


def textbook_targeted(z, y, t, tiny=1e-12):
    ordered = z.sort(descending=True).values
    return -(z[y] - z[t]) / (ordered[0] - 0.5 * (ordered[2] + ordered[3]) + tiny)


def problem(seed, classes, scale):
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(E, classes, N, generator=generator, dtype=torch.float64)
    y = torch.randint(classes, (N,), generator=generator)
    target = (y + 1 + torch.randint(classes - 1, (E, N), generator=generator)) % classes
    clean = torch.randn(E, classes, N, generator=generator, dtype=torch.float64)
    return logits, y, target, clean


@pytest.mark.parametrize("kind", ["ce", "kl", "dlr", "targeted"])
@given(st.integers(0, 10**6), st.integers(4, 7), st.sampled_from([0.1, 1.0, 10.0]))
@example(895260, 4, 0.1)
def test_slopes_are_the_gradient_up_to_a_positive_factor(kind, seed, classes, scale):
    logits, y, target, clean = problem(seed, classes, scale)
    loss = {"ce": CrossEntropy(y), "kl": KL(y, clean), "dlr": DLR(y), "targeted": TargetedDLR(y, target)}[kind]
    for e in range(E):
        for n in range(N):
            z = logits[e, :, n].clone().requires_grad_()

            def textbook(tiny, z=z, e=e, n=n):
                if kind == "ce":
                    return F.cross_entropy(z, y[n])
                if kind == "kl":
                    return F.kl_div(z.log_softmax(0), clean[e, :, n].softmax(0), reduction="sum")
                return textbook_dlr(z, y[n], tiny) if kind == "dlr" else textbook_targeted(z, y[n], target[e, n], tiny)

            # Without the 1e-12, which has a gradient of its own where y is third and the DLR constant.
            (gradient,) = torch.autograd.grad(textbook(0.0), z)
            logit_grad = loss.logit_grad(logits)[e, :, n]
            if gradient.norm() > 1e-6:  # below, the textbook's own gradient is rounding error
                cosine = F.cosine_similarity(gradient, logit_grad, dim=0)
                assert cosine > 1 - 1e-6
            if kind != "ce":
                assert torch.isclose(loss.values(logits)[e, n], textbook(1e-12).detach(), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("scale", [1.0, 20.0, 200.0])
@given(st.integers(0, 10**6), st.integers(2, 7))
def test_published_slopes_are_those_of_autograd_in_the_same_precision(scale, seed, classes):
    logits, y, _, clean = (part.float() if part.is_floating_point() else part for part in problem(seed, classes, scale))
    z = logits.clone().requires_grad_()
    entropies = F.cross_entropy(z.transpose(1, 2).reshape(-1, classes), y.repeat(E), reduction="sum")
    (gradient,) = torch.autograd.grad(entropies, z)
    logit_grad = cross_entropy(y, "published").logit_grad(logits)
    # Signs are what counts; a difference of two roundings of 1 may have either.
    torch.testing.assert_close(logit_grad, gradient, rtol=1e-4, atol=2e-7)
    assert torch.equal((logit_grad == 0).all(1), (gradient == 0).all(1)) or scale < 200
    (gradient,) = torch.autograd.grad(F.kl_div(z.log_softmax(1), clean.softmax(1), reduction="sum"), z)
    torch.testing.assert_close(divergence(y, clean, "published").logit_grad(logits), gradient, rtol=1e-4, atol=3e-7)


@given(st.integers(0, 10**6))
def test_the_odds_order_images_as_the_cross_entropy_does(seed):
    logits, y, *_ = problem(seed, 5, 1.0)
    odds = CrossEntropy(y).values(logits)
    entropy = F.cross_entropy(logits.transpose(1, 2).reshape(-1, 5), y.repeat(E), reduction="none").view(E, N)
    torch.testing.assert_close(entropy, F.softplus(odds))


@given(st.integers(0, 10**6), st.integers(2, 7))
def test_labels_may_be_those_of_each_run(seed, classes):
    logits, y, target, clean = problem(seed, classes, 1.0)
    own = torch.stack([y, y.flip(0)])
    for make in (
        lambda y, some: CrossEntropy(y),
        lambda y, some: cross_entropy(y, "published"),
        lambda y, some: KL(y, clean[some]),
        lambda y, some: DLR(y),
        lambda y, some: TargetedDLR(y, target[some]),
    ):
        together = make(own, slice(None))
        for e in range(E):
            alone = make(own[e], slice(e, e + 1))
            assert torch.equal(together.values(logits)[e], alone.values(logits[e : e + 1])[0])
            assert torch.equal(together.logit_grad(logits)[e], alone.logit_grad(logits[e : e + 1])[0])
        keep = torch.tensor([3, 0])
        assert torch.equal(together.pick(keep).logit_grad(logits[..., keep]), together.logit_grad(logits)[..., keep])
    apart = torch.stack([is_correct(logits[e : e + 1], own[e])[0] for e in range(E)])
    assert torch.equal(is_correct(logits, own), apart)


def test_one_class_has_no_rival():
    loss = CrossEntropy(torch.zeros(2, dtype=torch.int64))
    assert torch.isfinite(loss.logit_grad(torch.zeros(1, 1, 2))).all()
