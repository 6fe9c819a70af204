"""The rooms of the package import only what lies above them."""

from pathlib import Path

from importlinter.cli import EXIT_STATUS_SUCCESS, lint_imports


def test_arrows_point_one_way(monkeypatch, capsys):
    monkeypatch.chdir(Path(__file__).parents[1])
    assert lint_imports(config_filename="pyproject.toml", no_cache=True) == EXIT_STATUS_SUCCESS, capsys.readouterr().out
