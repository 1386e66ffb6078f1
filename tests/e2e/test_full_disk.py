"""A disk that gets full under a run, for real: a small file system of its own, with ballast that is removed later."""

from __future__ import annotations

import json
import random
import shlex
import string
import subprocess
from pathlib import Path

import pytest

from tests.fake_openai import FakeOpenAI, FakeReply
from tests.processes import quiz_run, start
from tests.reliability.stored import Key, read_stored

ROLLOUTS, IN_FLIGHT, DELAY_S = 48, 4, 0.5
#: What a full disk may waste: requests in flight, and two seconds of answers that were not staged.
LOST = IN_FLIGHT + int(2 * IN_FLIGHT / DELAY_S)
#: Random text, so that compression saves little: a rollout takes about this much on disk, once staged, twice adopted.
ANSWER = 48_000

MOUNT = "mount -t tmpfs -o size=64m tmpfs {disk}"
#: Both runs see the same small disk; what they say goes elsewhere. The copy is what the test can look at afterwards.
SCRIPT = """
{mount} && dd if=/dev/zero of={disk}/ballast bs=1M count={ballast} 2>/dev/null || exit 9
{run} >{folder}/first.out 2>{folder}/first.err
echo $? >{folder}/first.code
rm {disk}/ballast
{run} --resume --json >{folder}/second.out 2>{folder}/second.err
code=$?
cp -r {disk}/lake {folder}/lake
exit $code
"""


def can_mount(folder: Path) -> bool:
    words = ["unshare", "-rm", "sh", "-c", MOUNT.format(disk=folder)]
    try:
        return subprocess.run(words, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(("what", "free_mb"), [pytest.param("staging", 2, marks=pytest.mark.long), ("commit", 7)])
def test_a_full_disk_is_one_sentence_and_a_resume_completes_the_run(what: str, free_mb: int, tmp_path: Path) -> None:
    """Full while workers stage their rollouts, and while the driver commits what is staged."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if not can_mount(disk):
        pytest.skip("this machine lets no test mount a small disk (unshare -rm, mount -t tmpfs)")

    def answer(body: object, n: int) -> FakeReply:
        text = random.Random(n).choices(string.ascii_letters + string.digits, k=ANSWER)
        return FakeReply("".join(text), delay_s=DELAY_S)

    with FakeOpenAI(answer) as server:
        few_tries = ("--set", "spark.master=local[4,2]")
        words = quiz_run(tmp_path, server.url, ROLLOUTS, "--concurrency", str(IN_FLIGHT), *few_tries)
        run = shlex.join(word.replace(f"{tmp_path}/lake", f"{disk}/lake") for word in words)
        mount = MOUNT.format(disk=disk)
        script = SCRIPT.format(mount=mount, disk=disk, folder=tmp_path, ballast=64 - free_mb, run=run)
        process = start(["unshare", "-rm", "sh", "-c", script])
        code = process.wait(280)
        told = (tmp_path / "first.err").read_text()
        assert (tmp_path / "first.code").read_text() == "1\n", told
        assert "Traceback" not in told
        last = told.strip().splitlines()[-1]
        assert "No space left on device" in last
        assert f"{disk}/lake" in last
        assert "--resume" in last
        assert code == 0, (tmp_path / "second.err").read_text()
        # What was not staged when the disk was full is asked for again; a commit that failed has cost nothing.
        assert server.requests <= ROLLOUTS + (LOST if what == "staging" else 0)
    assert json.loads((tmp_path / "second.out").read_text())["coverage"]["scored"] == ROLLOUTS
    stored = read_stored(tmp_path / "lake", "r1")
    keys: set[Key] = stored.keys
    assert len(keys) == ROLLOUTS
    assert stored.twice == []
