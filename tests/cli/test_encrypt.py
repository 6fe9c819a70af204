"""`polybound encrypt` on a run of one's own: images in folders, their classes by name."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from polybound.cli.deploy import _plan
from polybound.cli.networks import read_images
from polybound.data import load

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
