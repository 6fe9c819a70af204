"""Losses of the attacks: logit_grad are gradients up to a positive factor, values are monotone in the textbook loss."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given
from hypothesis import strategies as st

from polybound.attacks import is_correct
from polybound.attacks.losses import DLR, KL, CrossEntropy, TargetedDLR, cross_entropy, divergence

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


def test_a_part_of_a_loss_is_the_loss_of_a_part():
    logits, y, target, clean = problem(0, 5, 1.0)
    keep = torch.tensor([4, 1])
    for loss in (CrossEntropy(y), KL(y, clean), DLR(y), TargetedDLR(y, target)):
        assert torch.equal(loss.pick(keep).logit_grad(logits[..., keep]), loss.logit_grad(logits)[..., keep])


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
