"""NSynth: spectrograms as defined, splits by instrument, a cache that cannot do harm, and damaged archives refused."""

import json

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
    """Each step by a slow and obvious computation."""
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
    slow, rate = first_second(on_disk.wav(on_disk.tone(440, 8000), 8000), "a.wav")
    fast, doubled = first_second(on_disk.wav(on_disk.tone(440, 16000, seconds=4), 16000), "b.wav")
    assert (rate, doubled) == (8000, 16000) and slow.shape == fast.shape == (8000,)
    assert np.abs(log_mel(np.stack([slow, fast]))[0] - log_mel(np.stack([slow, fast]))[1])[0, 3:9].max() < 0.05
    steps = np.arange(16000).astype("<i2")
    assert first_second(on_disk.wav(steps.tobytes(), 16000), "c.wav")[0] == pytest.approx(
        (np.arange(8000) * 2 + 0.5) / 32768
    )


WAVS = {
    "truncated": (on_disk.wav(on_disk.tone(440))[:4000], "truncated"),
    "half a second": (on_disk.wav(on_disk.tone(440, seconds=0.5)), "shorter than a second"),
    "stereo": (on_disk.wav(on_disk.tone(440, seconds=2), channels=2), "2 channels"),
    "8 bits": (on_disk.wav(bytes(8000), width=1), "8 bits"),
    "44.1 kHz": (on_disk.wav(on_disk.tone(440, 44100), 44100), "44100 Hz"),
    "not a wav file": (b"ID3" + bytes(500), "damaged"),
    "floats": (on_disk.wav(on_disk.tone(440)).replace(b"fmt \x10\0\0\0\x01\0", b"fmt \x10\0\0\0\x03\0"), "damaged"),
}


@pytest.mark.parametrize(("content", "word"), WAVS.values(), ids=WAVS)
def test_wrong_wav_files_are_refused(root, monkeypatch, content, word):
    on_disk.tiny_nsynth(monkeypatch, {})
    members = on_disk.nsynth_members("test")
    name = "nsynth-test/audio/brass_acoustic_005-001-100.wav"
    assert name in members
    path = on_disk.write(root / "nsynth" / TEST, on_disk.tarred(members | {name: content}))
    text = on_disk.refused("nsynth", path, data_dir=root)
    assert name in text and word in text


NOTE = "brass_acoustic_005-001-100"


def examples(change):
    members = on_disk.nsynth_members("test")
    content = json.loads(members["nsynth-test/examples.json"])
    change(content)
    return members | {"nsynth-test/examples.json": json.dumps(content).encode()}


def without(name):
    members = on_disk.nsynth_members("test")
    del members[name]
    return members


ARCHIVES = {
    "JSON broken": (lambda: on_disk.nsynth_members("test") | {"nsynth-test/examples.json": b"{"}, "not JSON"),
    "JSON too deep": (lambda: on_disk.nsynth_members("test") | {"nsynth-test/examples.json": b"[" * 30000}, "not JSON"),
    "JSON is a list": (lambda: on_disk.nsynth_members("test") | {"nsynth-test/examples.json": b"[1]"}, "not an object"),
    "JSON of numbers": (
        lambda: on_disk.nsynth_members("test") | {"nsynth-test/examples.json": b'{"a": 1}'},
        "not an object",
    ),
    "JSON too long": (lambda: on_disk.nsynth_members("test") | {"nsynth-test/examples.json": b" " * 99999}, "at most"),
    "no JSON": (lambda: without("nsynth-test/examples.json"), "holds no nsynth-test/examples.json"),
    "missing key": (lambda: examples(lambda e: e[NOTE].pop("instrument_family")), "instrument_family None"),
    "unknown family": (lambda: examples(lambda e: e[NOTE].update(instrument_family=3)), "no note of NSynth's"),
    "family is true": (lambda: examples(lambda e: e[NOTE].update(instrument_family=True)), "no note of NSynth's"),
    "other name": (lambda: examples(lambda e: e[NOTE].update(instrument_family_str="kazoo")), "kazoo"),
    "other rate": (lambda: examples(lambda e: e[NOTE].update(sample_rate=16000)), "sample_rate 16000"),
    "note without wav": (lambda: without(f"nsynth-test/audio/{NOTE}.wav"), "17 wav files"),
    "wav without note": (lambda: examples(lambda e: e.pop(NOTE)), "17 notes"),
    "doubled note": (
        lambda: (
            {f"./{n}": c for n, c in on_disk.nsynth_members("test").items() if NOTE in n}
            | on_disk.nsynth_members("test")
        ),
        "twice",
    ),
    "renamed note": (lambda: examples(lambda e: e.update(x=e.pop(NOTE))), "not 18 of both"),
}


@pytest.mark.parametrize(("members", "word"), ARCHIVES.values(), ids=ARCHIVES)
def test_wrong_archives_are_refused(root, monkeypatch, members, word):
    on_disk.tiny_nsynth(monkeypatch, {})
    path = on_disk.write(root / "nsynth" / TEST, on_disk.tarred(members()))
    assert word in on_disk.refused("nsynth", path, data_dir=root)


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
