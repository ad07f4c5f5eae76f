"""Plans: the same seed gives the same one, and a saved one comes back."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from tests.faults.__main__ import main, parser
from tests.faults.injection import DOES
from tests.faults.plan import KINDS, Plan, make

ROOT = Path(__file__).parents[2]


def test_every_kind_can_be_done() -> None:
    assert DOES.keys() == KINDS.keys()


def test_same_seed_gives_the_same_plan() -> None:
    assert make(7, 100, 1_000, 2) == make(7, 100, 1_000, 2)
    assert make(7, 100, 1_000, 2) != make(8, 100, 1_000, 2)


def test_every_kind_comes_once_before_any_comes_twice() -> None:
    kinds = [fault.kind for episode in make(1, 200, 1_000, 3).episodes for fault in episode]
    assert len(kinds) == 200
    assert set(kinds[: len(KINDS)]) == set(KINDS)


def test_some_episodes_overlap_and_most_do_not() -> None:
    sizes = Counter(len(episode) for episode in make(1, 400, 1_000, 3).episodes)
    assert set(sizes) == {1, 2, 3}
    assert sizes[1] > sizes[2] + sizes[3]


def test_saved_plan_comes_back(tmp_path: Path) -> None:
    plan = make(3, 30, 1_000, 2)
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == plan


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"{", "no plan"),
        (b'{"seed": 1, "machines": 2, "offers": 3}', "episodes"),
        (
            b'{"seed":1,"machines":2,"offers":3,"episodes":[[{"kind":"flood","machine":0}]]}',
            "no kind of fault is named 'flood'",
        ),
        (
            (
                b'{"seed":1,"machines":1,"offers":3,"episodes":'
                b'[[{"kind":"SIGTERM of a worker","machine":1}]]}'
            ),
            "there is no machine 1",
        ),
    ],
)
def test_plan_that_cannot_be_is_refused_in_one_line(
    content: bytes, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(content)
    assert main(["--plan", str(path), "--directory", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line


def test_plan_file_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--plan", str(tmp_path / "none.json")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "none.json" in line


@pytest.mark.parametrize("argument", ["--faults=0", "--offers=-1", "--machines=0", "--seed=x"])
def test_number_that_cannot_be_is_refused(argument: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main([argument])
    assert ended.value.code == 2


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_make_gives_what_the_command_takes() -> None:
    def told(*variables: str) -> dict[str, object]:
        environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        command = ["make", "-n", "faults", *variables]
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True
        )
        line = shlex.split(done.stdout.replace("\\\n", " ").splitlines()[-1])
        assert line[1:3] == ["-m", "tests.faults"]
        return vars(parser().parse_args(line[3:]))

    assert told("SEED=7", "FAULTS=200", "COUNT=1000000", "PLAN=plan.json") == {
        "seed": 7,
        "faults": 200,
        "offers": 1_000_000,
        "machines": 2,
        "plan": Path("plan.json"),
        "directory": None,
    }
    assert told()["seed"] is None
