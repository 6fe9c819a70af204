"""Denoising defences, in front of single models and stacks."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import ndimage

import polybound as pb
from helpers.errors import refuses
from polybound.attacks import FGSM, PGD
from polybound.defences import (
    Defence,
    Defended,
    GaussianDenoiser,
    GuidedDenoiser,
    MedianDenoiser,
    find_defence,
    parse_defence,
    register_defence,
)


@pytest.mark.parametrize("size", [1, 3, 5])
def test_filters_are_those_of_scipy(size):
    images = torch.rand(2, 3, 9, 7, dtype=torch.float64)
    mean, middle = GaussianDenoiser(size, 1.3)(images), MedianDenoiser(size)(images)
    offsets = np.arange(size) - size // 2
    weights = np.exp(-(offsets**2) / (2 * 1.3**2))
    kernel = np.outer(weights, weights) / weights.sum() ** 2
    for i in range(2):
        for c in range(3):
            one = images[i, c].numpy()
            np.testing.assert_allclose(mean[i, c].numpy(), ndimage.correlate(one, kernel, mode="mirror"), atol=1e-12)
            np.testing.assert_allclose(middle[i, c].numpy(), ndimage.median_filter(one, size, mode="mirror"))


@pytest.mark.parametrize("defence", [GaussianDenoiser(), MedianDenoiser(), GuidedDenoiser((1, 8, 8))])
def test_a_defended_stack_is_its_defended_members(defence):
    data = pb.data.load_digits("test")
    x, y = data.x[:20], data.y[:20]
    models = [pb.paper_model("pn-4", shape=data.shape, seed=seed) for seed in (0, 1)]
    both = Defended(pb.stack(models), defence).eval()
    found = PGD(0.1, 3)(both, x, y, domain=data.domain)
    for e, model in enumerate(models):
        alone = Defended(model, defence).eval()
        torch.testing.assert_close(both(x)[e], alone(x), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(both(found)[e], alone(found[e]), rtol=1e-4, atol=1e-5)
    assert (found - x).abs().max() <= 0.1


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 7, 5)])
def test_guided_denoising_begins_as_the_identity(shape):
    images = torch.rand(4, *shape)
    denoiser = GuidedDenoiser(shape, seed=3).eval()
    assert torch.equal(denoiser(images), images)
    state = GuidedDenoiser(shape, seed=3).state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in denoiser.state_dict().items())


@pytest.mark.slow
def test_guided_denoising_learns_to_undo_an_attack():
    train, test = pb.data.load_digits("train"), pb.data.load_digits("test")
    model = pb.example("digits")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    defence = GuidedDenoiser(train.shape, epochs=12, batch_size=64).fit(model, train.x, train.y, domain=train.domain)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    defended = Defended(model, defence).eval()

    def accuracy(classifier, x):
        return (classifier(x).argmax(-1) == test.y).float().mean()

    # What an attack on the bare model does, the denoiser undoes; an attack that sees both finds its way.
    found = FGSM(0.2)(model, test.x, test.y, domain=test.domain)
    assert accuracy(defended, test.x) > accuracy(model, test.x) - 0.05
    assert accuracy(defended, found) > accuracy(model, found) + 0.2
    adapted = PGD(0.2, 20)(defended, test.x, test.y, domain=test.domain)
    assert accuracy(defended, adapted) < accuracy(defended, found) - 0.1


def test_evaluation_with_a_defence():
    data = pb.data.load_digits("test")
    model = pb.paper_model("pn-4", shape=data.shape, seed=0)
    result = pb.evaluate(model, data, "fgsm-0.1", defence="median", limit=50)
    clean = (model(MedianDenoiser()(data.x[:50])).argmax(-1) == data.y[:50]).sum()
    assert result.find("clean").correct == int(clean)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MedianDenoiser(2), "odd size"),
        (lambda: GaussianDenoiser(9)(torch.zeros(1, 1, 4, 4)), "too large"),
        (lambda: GaussianDenoiser(3, -1.0), "sigma"),
        (lambda: GuidedDenoiser((64,)), "needs images"),
        (lambda: GuidedDenoiser((1, 8, 8), protocol="honest"), "protocol must be"),
    ],
)
def test_bad_defences(make, message):
    refuses(message, make)


odd, sizes = st.integers(0, 20).map(lambda n: 2 * n + 1), st.floats(0.0, 100.0) | st.sampled_from([1, 2.0, 1e-9])
defences = st.one_of(
    st.builds(GaussianDenoiser, odd, sizes),
    st.builds(MedianDenoiser, odd),
    st.builds(
        GuidedDenoiser,
        st.just((1, 8, 8)),
        st.integers(1, 4),
        st.integers(0, 10**9),
        epochs=st.integers(1, 50),
        batch_size=st.integers(1, 512),
        learning_rate=sizes,
        protocol=st.sampled_from(["sound", "published"]),
    ),
)


@given(defences)
def test_names_are_canonical_and_read_back(defence):
    again = parse_defence(defence.name, (1, 8, 8))
    assert type(again) is type(defence) and again.name == defence.name
    assert {name: getattr(again, name) for name in again.settings()} == {
        name: getattr(defence, name) for name in defence.settings()
    }


def test_names():
    assert GaussianDenoiser().name == GaussianDenoiser(3, 1).name == "gaussian"
    assert GaussianDenoiser(5, 2.0).name == "gaussian:size=5:sigma=2"
    assert MedianDenoiser().name == "median" and GuidedDenoiser((1, 8, 8)).name == "guided"
    assert GuidedDenoiser((1, 8, 8), epochs=3).name == "guided:epochs=3"
    assert find_defence("median:size=5", (1, 8, 8)).size == 5
    given = MedianDenoiser()
    assert find_defence(given, (1, 8, 8)) is given


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mean", "unknown defence 'mean'; there are gaussian, median, guided"),
        ("median:colour=red", "has no option 'colour'; it has size"),
        ("median:size=x", "size cannot be 'x'"),
        ("median:size=4", "odd size"),
        ("guided:width=8", "denoising is trained: GuidedDenoiser"),
    ],
)
def test_bad_names(name, message):
    refuses(message, find_defence, name, (1, 8, 8))
    refuses("needs images", find_defence, "median", (64,))


@pytest.mark.usefixtures("registries")
def test_a_defence_of_ones_own(monkeypatch):
    @register_defence
    class Clip(Defence):
        kind = "clip"

        def __init__(self, shape, low: float = -0.5, hard: bool = True):
            super().__init__()
            self.shape, self.low, self.hard = shape, low, hard

        def forward(self, images):
            return images.clamp_min(self.low)

    for kind in ("gaussian", "Loud", "a-b", None):
        monkeypatch.setattr(Clip, "kind", kind)
        refuses(r"already|lower-case", register_defence, Clip)

    class Bare(Clip):
        kind = "bare"

        def __init__(self, size):
            super().__init__((1, 8, 8))
            self.size = size

    refuses("'size' needs a default", register_defence, Bare)
