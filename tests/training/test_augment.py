"""Augmentation and clipping: by hand, the same whatever else is trained, and nothing where they are not asked for."""

from itertools import pairwise
from typing import ClassVar

import numpy as np
import pytest
import torch

import polybound as pb
from helpers.errors import refuses
from polybound.errors import PolyboundError
from polybound.runs import DataSpec, ModelSpec, Spec
from polybound.seeds import seeded
from polybound.training import Recipe, register_augmentation
from polybound.training.augment import Crop, Flip, Shift, augmentations, augmented

DIGITS = pb.data.load_digits("train")
IMAGES = torch.arange(5 * 2 * 6 * 7.0).reshape(5, 2, 6, 7) + 1


def moved(image, down, right, border):
    """An image moved by numpy: padded, then cut."""
    mode = {"repeat": "edge", "reflect": "reflect", "zero": "constant"}[border]
    wide = np.pad(image.numpy(), ((0, 0), (2, 2), (2, 2)), mode)
    height, width = image.shape[1:]
    return torch.from_numpy(wide[:, 2 + down : 2 + down + height, 2 + right : 2 + right + width].copy())


@pytest.mark.parametrize("border", ["repeat", "reflect", "zero"])
def test_images_are_moved_by_up_to_some_pixels(border):
    changed = Shift(2, border)(IMAGES, seeded(0))
    seen = set()
    for image, result in zip(IMAGES, changed, strict=True):
        fits = {(a, b) for a in range(-2, 3) for b in range(-2, 3) if torch.equal(moved(image, a, b, border), result)}
        assert len(fits) == 1
        seen |= fits
    assert len(seen) > 2
    many = Shift(2, border)(IMAGES[:1].expand(400, -1, -1, -1), seeded(1))
    assert len({tuple(image.flatten().tolist()) for image in many}) == 25  # all moves
    assert torch.equal(IMAGES.flatten(), torch.arange(5 * 2 * 6 * 7.0) + 1)


def test_every_other_image_is_flipped():
    images = IMAGES[:1].expand(400, -1, -1, -1)
    flipped = (Flip()(images, seeded(0)) == images.flip(-1)).flatten(1).all(1)
    straight = (Flip()(images, seeded(0)) == images).flatten(1).all(1)
    assert bool((flipped ^ straight).all()) and 150 < int(flipped.sum()) < 250


def test_names_say_all_settings():
    given = augmentations("crop, flip,shift-1:border=zero")
    assert [one.name for one in given] == ["crop-4", "flip", "shift-1:border=zero"]
    assert augmentations([one.name for one in given]) == given == augmentations(given)
    assert augmentations("none") == augmentations("") == augmentations(()) == ()
    assert augmentations(Crop(3)) == (Crop(3),) and Recipe(augment=("flip",)).augment == (Flip(),)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("rotate", "unknown augmentation 'rotate'; there are flip, shift-PIXELS, crop-PIXELS"),
        ("crop-0", "pixels must be a whole number of at least 1, got 0"),
        ("crop-2:border=blue", "border must be one of repeat, reflect, zero, got 'blue'"),
        ("flip-2", "augmentation 'flip-2' is not of the form flip"),
        (3, "augment takes names such as flip, crop-4 or shift-2, got 3"),
        ("crop-8", "augmentation crop-8 moves images of (1, 8, 8) out of sight"),
        ("crooked", "augmentation crooked made (5, 1, 8, 4) of images (5, 1, 8, 8)"),
    ],
)
@pytest.mark.usefixtures("registries")
def test_what_cannot_be_is_refused(given, message):
    @register_augmentation
    def crooked(images, generator):
        return images[..., ::2]

    text = refuses("", pb.fit, pb.paper_model("pn-4", DIGITS.shape, seed=0), DIGITS.subset(5), augment=given, epochs=1)
    assert text.startswith(message)


def test_flat_inputs_are_no_images():
    with pytest.raises(PolyboundError, match=r"flip takes images \(channels, height, width\), not \(64,\)"):
        augmented(augmentations("flip"), torch.zeros(2, 64), (64,), seeded(0))


@pytest.mark.usefixtures("registries")
def test_training_sees_what_the_stream_of_its_step_makes():
    seen = []

    @register_augmentation
    def watched(images, generator):
        seen.append((images.clone(), generator.initial_seed()))
        return images + torch.rand(1, generator=generator)

    def trained(**more):
        model = pb.paper_model("pn-4", DIGITS.shape, seed=0, **more)
        seed = range(more.get("runs", 1)) if more else 1
        pb.fit(model, DIGITS.subset(100), "paper", augment="watched", epochs=2, learning_rate=0.01, seed=seed)
        return model

    single = trained()
    wanted = [seeded(1, -1 - epoch, step).initial_seed() for epoch in (0, 1) for step in (0, 1)]
    assert [found for _, found in seen] == wanted and seen[0][0].shape == (64, 1, 8, 8)
    assert seen[1][0].shape == (36, 1, 8, 8)
    seen.clear()
    stack = trained(runs=3)
    assert len(seen) == 3 * 4 and set(wanted) <= {found for _, found in seen}
    plain = pb.paper_model("pn-4", DIGITS.shape, seed=0)
    pb.fit(plain, DIGITS.subset(100), "paper", epochs=2, learning_rate=0.01, seed=1)
    assert not torch.equal(plain.V, single.V) and torch.isfinite(stack.V).all()


class Recorded(pb.training.Optimiser):
    """Plain steps; keeps what it was given."""

    seen: ClassVar[list] = []

    def update_(self, weights, gradients, memory, rate, step):
        self.seen.append([gradient.clone() for gradient in gradients])


@pytest.mark.parametrize("runs", [None, 2])
def test_gradients_are_clipped_run_by_run(runs):
    recipe = Recipe(optimiser=Recorded(0.01), clip=0.5)
    options = {"seed": 0} if runs is None else {"seed": [0, 1], "runs": runs}

    def gradients(recipe):
        Recorded.seen.clear()
        model = pb.paper_model("pn-4", DIGITS.shape, **options)
        pb.fit(model, DIGITS.subset(64), recipe, epochs=1)
        return [list(Recorded.seen[0][run :: runs or 1]) for run in range(runs or 1)]

    whole, clipped = gradients(Recipe(optimiser=Recorded(0.01))), gradients(recipe)
    for mine, other in zip(whole, clipped, strict=True):
        norm = torch.cat([part.flatten() for part in mine]).norm()
        assert norm > 0.5
        for one, two in zip(mine, other, strict=True):
            torch.testing.assert_close(one * (0.5 / norm), two, rtol=1e-5, atol=0)
    free = gradients(Recipe(optimiser=Recorded(0.01), clip=1e6))
    assert all(torch.equal(a, b) for one, two in zip(whole, free, strict=True) for a, b in zip(one, two, strict=True))


def test_sgd_is_clipped_as_any_other_optimiser():
    found = []
    for clip in (0.0, 1e-3):
        model = pb.paper_model("pn-4", DIGITS.shape, seed=0)
        before = [parameter.detach().clone() for parameter in model.parameters()]
        pb.fit(model, DIGITS.subset(64), "paper", epochs=1, learning_rate=1.0, clip=clip)
        pairs = zip(before, model.parameters(), strict=True)
        found.append(torch.cat([(one - other).flatten() for one, other in pairs]).norm())
    assert found[0] > 0.01 and found[1] <= 1.001e-3


def test_the_address_changes_only_where_it_is_asked_for():
    spec = Spec(DataSpec("digits", "00ff"), ModelSpec("pn-4"), Recipe(), 0)
    assert spec.address == "46b1d40234d524b4"
    assert spec == Spec(spec.data, spec.model, Recipe(augment="none", clip=0))
    assert len({Spec(spec.data, recipe=Recipe(**more)).address for more in ({}, {"augment": "flip"}, {"clip": 1})}) == 3


def test_one_cycle_rises_and_falls_by_step():
    schedule = Recipe.from_options(schedule="one-cycle", epochs=10, learning_rate=2.0).schedule
    factors = [schedule.factor_at(epoch / 100) for epoch in range(1001)]
    assert factors[0] == 0.04 and factors[300] == 1.0 == max(factors) and factors[1000] < 1e-9
    assert all(a < b for a, b in pairwise(factors[:301]))
    assert all(a > b for a, b in pairwise(factors[300:]))
    assert Recipe.from_options(schedule="one-cycle", rise=0.0).schedule.factor_at(0) == 1.0
    rates = []

    class Rates(pb.training.Optimiser):
        def update_(self, weights, gradients, memory, rate, step):
            rates.append(rate)

    recipe = Recipe(optimiser=Rates(1.0), schedule=schedule)
    pb.fit(pb.paper_model("pn-4", DIGITS.shape, seed=0), DIGITS.subset(128), recipe)
    assert rates == [schedule.factor_at(step / 2) for step in range(20)]


def test_steps_in_bfloat16_leave_float32_weights():
    found = {}
    for precision in ("float32", "bfloat16"):
        net = pb.PolyNet(DIGITS.shape, width=4, blocks=(1,), seed=0)
        history = pb.fit(net, DIGITS.subset(128), epochs=2, learning_rate=0.01, precision=precision)
        found[precision] = net, history["loss"][-1]
        assert {tensor.dtype for tensor in net.state_dict().values()} == {torch.float32}
    (one, loss), (other, lowered) = found.values()
    assert not torch.equal(one.head.weight, other.head.weight) and abs(loss - lowered) < 0.05 * loss
    with pytest.raises(PolyboundError, match="precision bfloat16 is for networks that autograd trains, not for a CCP"):
        pb.fit(pb.paper_model("pn-4", DIGITS.shape, seed=0), DIGITS.subset(5), epochs=1, precision="bfloat16")
