"""NSynth: spectrograms as defined, splits by instrument, a cache that cannot do harm, and damaged archives refused."""

import numpy as np
import pytest
import torch

from helpers import data as on_disk
from helpers.errors import refuses
from polybound.data import load, nsynth
from polybound.data.nsynth import first_second, log_mel

TEST = "nsynth-test.jsonwav.tar.gz"


def put_test_split(root, monkeypatch):
    """The official test split alone."""
    content = on_disk.tarred(on_disk.nsynth_members("test"))
    on_disk.tiny_nsynth(monkeypatch, {"test": content})
    on_disk.write(root / "nsynth" / TEST, content)


def test_spectrogram_against_its_definition():
    wave = np.random.default_rng(0).uniform(-1, 1, 8000)
    picture = log_mel(wave[None])[0, 0]
    mel = lambda f: 2595 * np.log10(1 + f / 700)  # noqa: E731
    points = [700 * (10 ** (mel(4000) * k / 33 / 2595) - 1) for k in range(34)]
    window = np.array([0.5 - 0.5 * np.cos(2 * np.pi * n / 512) for n in range(512)])
    for band, frame in ((0, 0), (5, 31), (31, 7), (17, 16)):
        power = 0.0
        for k in range(257):
            height = np.interp(k * 8000 / 512, points[band : band + 3], [0, 1, 0], left=0, right=0)
            if height:
                turns = np.exp(-2j * np.pi * k * np.arange(512) / 512)
                amplitude = 2 / window.sum() * np.sum(wave[240 * frame : 240 * frame + 512] * window * turns)
                power += height * abs(amplitude) ** 2
        decibels = np.clip(10 * np.log10(power), -80, 0)
        assert picture[band, frame] == pytest.approx(decibels / 40 + 1, abs=1e-5)


def test_spectrograms_stay_in_their_domain():
    loud = np.sign(np.sin(2 * np.pi * 997 * np.arange(8000) / 8000))
    for wave in (np.zeros(8000), np.ones(8000), loud, -loud, np.eye(1, 8000, 4000)[0]):
        picture = log_mel(wave[None])
        assert picture.shape == (1, 1, 32, 32) and picture.dtype == np.float32 and np.abs(picture).max() <= 1
    assert (log_mel(np.zeros((1, 8000))) == -1).all()


def test_the_first_second_whatever_the_rate():
    slow = first_second(on_disk.wav(on_disk.tone(440, 8000), 8000))
    fast = first_second(on_disk.wav(on_disk.tone(440, 16000, seconds=4), 16000))
    assert slow.shape == fast.shape == (8000,)
    assert np.abs(log_mel(np.stack([slow, fast]))[0] - log_mel(np.stack([slow, fast]))[1])[0, 3:9].max() < 0.05
    steps = np.arange(16000).astype("<i2")
    assert first_second(on_disk.wav(steps.tobytes(), 16000)) == pytest.approx((np.arange(8000) * 2 + 0.5) / 32768)


def test_other_archives_than_the_official_ones_are_refused(root, monkeypatch):
    put_test_split(root, monkeypatch)
    path = on_disk.write(root / "nsynth" / TEST, on_disk.tarred(on_disk.nsynth_members("test", rate=16000)))
    assert "SHA-256" in on_disk.refused("nsynth", path, data_dir=root)
    on_disk.tiny_nsynth(monkeypatch, {})
    assert "no checksum of this archive is known" in on_disk.refused("nsynth", path, data_dir=root)


def test_without_train_the_test_split_is_divided_by_instrument(root, monkeypatch):
    put_test_split(root, monkeypatch)
    train, test = (load("nsynth", split, data_dir=root, download=False) for split in ("train", "test"))
    assert len(train) + len(test) == 18 and train.shape == (1, 32, 32) and train.class_names == on_disk.FAMILIES
    assert sorted(set(test.y.tolist())) == sorted(set(train.y.tolist())) == [0, 1, 2]
    # Two notes of an instrument are one tone and another; no tone of train is in test.
    assert not {x.numpy().tobytes() for x in train.x} & {x.numpy().tobytes() for x in test.x}
    assert "divided by instrument" in train.note and train.note == test.note
    again = load("nsynth", "test", data_dir=root, seed=5, download=False)
    assert torch.equal(again.x, test.x)  # the test split has no seed
    refuses("no official validation", load, "nsynth", "validation", data_dir=root, download=False)
    rest, validation, _ = on_disk.splits_of("nsynth", validation=0.3, data_dir=root, download=False)
    assert len(rest) + len(validation) == len(train) and "divided" in validation.note


def test_official_splits_if_all_archives_are_there(root, monkeypatch):
    members = {
        "train": on_disk.nsynth_members("train", ((0, 4), (1, 4), (2, 4)), first=20),
        "validation": on_disk.nsynth_members("valid", ((0, 2), (1, 2), (2, 2)), first=40, rate=16000),
        "test": on_disk.nsynth_members("test"),
    }
    contents = {split: on_disk.tarred(part) for split, part in members.items()}
    on_disk.tiny_nsynth(monkeypatch, contents)
    for split, part in (("train", "train"), ("validation", "valid"), ("test", "test")):
        on_disk.write(root / "nsynth" / f"nsynth-{part}.jsonwav.tar.gz", contents[split])
    found = {split: load("nsynth", split, data_dir=root, download=False) for split in contents}
    assert {split: len(data) for split, data in found.items()} == {"train": 24, "validation": 12, "test": 18}
    assert all(data.note == "" for data in found.values())
    assert found["test"].y.tolist() == [0] * 8 + [1] * 6 + [2] * 4


def test_features_are_computed_once(root, monkeypatch, tmp_path):
    put_test_split(root, monkeypatch)
    first = load("nsynth", data_dir=root, download=False)
    assert len(list((tmp_path / "cache" / "polybound" / "features").iterdir())) == 1
    monkeypatch.setattr(nsynth, "_compute", lambda *_: pytest.fail("computed again"))
    assert torch.equal(load("nsynth", data_dir=root, download=False).x, first.x)


@pytest.mark.parametrize("damage", ["cut", "flip", "pickle", "nan", "labels"])
def test_a_damaged_cache_is_not_believed(root, monkeypatch, tmp_path, damage):
    put_test_split(root, monkeypatch)
    first = load("nsynth", data_dir=root, download=False)
    (kept,) = (tmp_path / "cache" / "polybound" / "features").iterdir()
    whole = kept.read_bytes()
    x, y = np.zeros((18, 1, 32, 32), np.float32), np.zeros(18, np.int64)
    match damage:
        case "cut":
            kept.write_bytes(whole[:-100])
        case "flip":
            kept.write_bytes(whole[:5000] + bytes([whole[5000] ^ 1]) + whole[5001:])
        case "pickle":
            np.savez(kept, x=np.array([print], dtype=object), y=y, groups=y)
        case "nan":
            np.savez(kept, x=x + np.nan, y=y, groups=y)
        case "labels":
            np.savez(kept, x=x, y=y + 7, groups=y)
    assert torch.equal(load("nsynth", data_dir=root, download=False).x, first.x)
    assert kept.read_bytes() == whole


def test_without_a_cache_it_works_too(root, monkeypatch, tmp_path):
    put_test_split(root, monkeypatch)
    on_disk.write(tmp_path / "cache" / "polybound", b"a file in the place of the folder")
    assert len(load("nsynth", data_dir=root, download=False)) > 0
