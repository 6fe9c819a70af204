"""The README's Python runs as it stands."""

import re
from pathlib import Path

import polybound as pb

README = Path(__file__).parents[1] / "README.md"


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README.read_text(), re.DOTALL)


def run(code, names):
    exec(compile(code, "README.md", "exec"), names)


def test_first_example(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run(blocks("python")[0], {})
    printed = capsys.readouterr().out
    assert "inside its bounds: True" in printed and "Row-wise bound" in printed
    accuracy = float(re.search(r"test accuracy ([\d.]+)", printed).group(1))
    assert accuracy > 0.85


def test_other_examples(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = {"pb": pb, "model": pb.paper_model("pn-4", seed=0)}
    for block in blocks("python")[1:]:
        run(block, names)
    assert "Theorem 2" in capsys.readouterr().out


def test_first_screen_has_the_two_commands_and_a_picture():
    first = README.read_text().splitlines()[:30]
    assert any("make demo" in line for line in first) and any("make test" in line for line in first)
    picture = re.search(r"!\[[^\]]+\]\(([^)]+)\)", "\n".join(first)).group(1)
    assert (README.parent / picture).stat().st_size > 10_000
