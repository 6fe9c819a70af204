"""Images that a command is given, and `polybound encrypt` on a run of one's own."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from polybound.cli.deploy import _plan
from polybound.cli.networks import read_images
from polybound.data import load
from polybound.errors import PolyboundError

NAMES = ("apple", "bee on a flower", "cat")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three classes of ten small pictures."""
    root = tmp_path_factory.mktemp("own") / "images"
    rng = np.random.default_rng(0)
    for label, name in enumerate(NAMES):
        (root / name).mkdir(parents=True)
        for i in range(10):
            pixels = np.clip(rng.normal(60 + 70 * label, 20, (4, 4)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(root / name / f"{i}.png")
    return root


@pytest.fixture(scope="module")
def run(cli, folder):
    words = ("--dataset", f"folder:{folder}", "--model", "pn-4", "--epochs", 2, "--batch-size", 8)
    result = cli("train", *words, "--runs", folder.parent / "runs on disk", "--json")
    assert result.code == 0, result.err
    return Path(result.json["runs"][0]["run"])


def test_images_of_a_folder_are_those_of_its_test_split(folder):
    found = read_images([f"folder:{folder}:0-3"], (1, 4, 4), (-1.0, 1.0), None)
    assert [name for name, _ in found] == [f"folder:{folder}:{i}" for i in range(4)]
    np.testing.assert_array_equal(found[3][1], load(f"folder:{folder}", "test").x[3].double())


def test_the_names_of_a_run_are_in_its_plan(run):
    assert _plan(str(run), (-1.0, 1.0), 1.0).public.class_names == NAMES


def test_names_that_cannot_be_known_are_numbers(cli, run, folder):
    hidden = folder.with_name("elsewhere")
    folder.rename(hidden)
    try:
        result = cli("encrypt", "plan", run)
        assert result.code == 0 and "classes are numbered, because" in result.err
    finally:
        hidden.rename(folder)


def test_a_model_file_has_no_data_for_a_demo(refused, run):
    assert "a run folder does" in refused("encrypt", "demo", run / "model.safetensors")


@pytest.mark.slow
def test_the_demo_of_a_run(cli, run):
    result = cli("encrypt", "demo", run, "--index", 4)
    assert result.code == 0, result.err
    answer = next(line for line in result.out.splitlines() if line.startswith("answer"))
    assert answer.split("answer")[1].strip().split(" (label: ")[0] in NAMES and "label: cat" in answer


SHAPE, DOMAIN = (1, 4, 6), (-1.0, 1.0)


def read(*words, shape=SHAPE, domain=DOMAIN):
    return read_images([str(word) for word in words], shape, domain, None)


@pytest.fixture
def pixels():
    return np.arange(24, dtype=np.uint8).reshape(4, 6) * 10


def test_pictures_become_values_of_the_domain(tmp_path, pixels):
    Image.fromarray(pixels).save(tmp_path / "a.png")
    Image.fromarray(np.stack([pixels] * 3, -1)).save(tmp_path / "b.png")
    for name, image in read(tmp_path / "a.png", tmp_path / "b.png", domain=(0.0, 2.0)):
        assert name.endswith(".png") and image.shape == SHAPE
        np.testing.assert_allclose(image[0], pixels / 255 * 2)


def test_colours_come_first(tmp_path, pixels):
    coloured = np.stack([pixels, pixels + 1, pixels + 2], -1)
    Image.fromarray(coloured).save(tmp_path / "a.png")
    ((_, image),) = read(tmp_path / "a.png", shape=(3, 4, 6), domain=(0.0, 255.0))
    np.testing.assert_allclose(image, coloured.transpose(2, 0, 1))


def test_arrays_of_bytes_are_scaled_and_others_stay(tmp_path, pixels):
    np.save(tmp_path / "bytes.npy", pixels)
    np.savez(tmp_path / "two.npz", X=np.stack([pixels, pixels]) / 255, y=[0, 1])
    found = read(tmp_path / "bytes.npy", tmp_path / "two.npz")
    assert [name.rpartition("/")[2] for name, _ in found] == ["bytes.npy", "two.npz:X:0", "two.npz:X:1"]
    np.testing.assert_allclose(found[0][1][0], pixels / 255 * 2 - 1)
    np.testing.assert_allclose(found[1][1][0], pixels / 255)


def test_images_of_a_test_split():
    found = read("digits:2-3", shape=(1, 8, 8))
    assert [name for name, _ in found] == ["digits:2", "digits:3"]
    np.testing.assert_array_equal(found[1][1], load("digits", "test").x[3].double())


def test_a_file_may_be_called_like_a_data_set(tmp_path, monkeypatch, pixels):
    monkeypatch.chdir(tmp_path)
    Image.fromarray(pixels).save(tmp_path / "digits:2", format="png")
    assert read("digits:2")[0][1].shape == SHAPE


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("a.png", (1, 5, 5), "6 x 4 pixels, 5 x 5 are wanted"),
        ("a.png", (24,), "no pictures"),
        ("nothing.png", SHAPE, "no such file"),
        ("text.png", SHAPE, "not an image that can be read"),
        ("large.png", SHAPE, "exceeds limit"),
        ("pickle.npy", SHAPE, "not an array"),
        ("a.npy", (1, 5, 5), "is wanted"),
    ],
)
def test_what_does_not_fit_is_refused_by_its_name(tmp_path, pixels, name, shape, message):
    Image.fromarray(pixels).save(tmp_path / "a.png")
    np.save(tmp_path / "a.npy", pixels)
    np.save(tmp_path / "pickle.npy", np.array([{"a": 1}], dtype=object))
    (tmp_path / "text.png").write_text("text")
    Image.new("1", (20000, 20000)).save(tmp_path / "large.png")
    with pytest.raises(PolyboundError, match=message) as refused:
        read(tmp_path / name, shape=shape)
    assert name in str(refused.value)
