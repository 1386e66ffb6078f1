"""FIELD-NOTES P60, line by line: hostile answers through `code_tests`, on each sandbox that can run here."""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.test_sandbox import BACKENDS, backend_or_skip, processes_with

#: Judges answers, as a worker would, in a process whose environment holds a secret.
WORKER = """
import json, sys
from gym_spark.verify.base import Judgeable, judge_one, load_verifier, warm_up
backend, answers = json.load(sys.stdin)
verifier = load_verifier("code_tests", {"cpu_limit_s": 1, "wall_limit_s": 4, "memory_mb": 256})
warm_up("code_tests", verifier, backend)
for answer in answers:
    verdict = judge_one(verifier, Judgeable("t", 0, {"tests": ["assert done()"]}, answer, None, None, None))
    print(json.dumps([verdict.state, verdict.reward, verdict.detail]))
"""

#: What an answer does -> its code. PLACE is a file of the machine that anyone may change, PORT a live server, MARK a
#: number that no other process has; each ends with an exception that tells what it got hold of.
HOSTILE = {
    "print_environ": "import os\nraise Exception(dict(os.environ))",
    "read_environments_in_proc": """
import os
got = []
for name in ["1", "self", str(os.getppid()), "thread-self", *map(str, range(2, 3000))]:
    try:
        got.append(open(f"/proc/{name}/environ").read())
    except OSError:
        pass
raise Exception(got)""",
    "forge_the_report_of_its_end": """
import os
opened = []
for name in ["mem", *(f"fd/{number}" for number in range(3, 300))]:
    for mode in (os.O_RDWR, os.O_WRONLY):
        try:
            opened.append(os.open(f"/proc/{os.getppid()}/{name}", mode))
        except OSError:
            pass
for number in opened:
    os.write(number, b"ended 0 0.1\\n")
raise Exception("FOR" "GED" if opened else "nothing")""",
    "read_the_run_s_config": "raise Exception(open('PLACE').read())",
    "list_its_folder": "import os\nraise Exception('LIST' 'ED', os.listdir(os.path.dirname('PLACE')))",
    "overwrite_it": "open('PLACE', 'w').write('gone')",
    "remove_it": "import os\nos.remove('PLACE')",
    "change_its_mode": "import os\nos.chmod('PLACE', 0)",
    "truncate_it": "import os\nos.truncate('PLACE', 0)",
    "link_to_it": "import os\nos.symlink('PLACE', 'link')\nraise Exception(open('link').read())",
    "open_a_socket": "import socket\nsocket.create_connection(('127.0.0.1', PORT), 2).sendall(b'x')",
    "fork_and_sleep": "import os\nif os.fork() == 0:\n    os.setsid()\n    os.execv('/bin/sleep', ['sleep', 'MARK'])",
    "start_a_daemon": "import subprocess\nsubprocess.Popen(['/bin/sleep', 'MARK'], start_new_session=True)",
    "write_10_gb": "with open('big', 'wb') as f:\n    for _ in range(10_000):\n        f.write(bytes(1 << 20))",
    "write_10_gb_in_many_files": """
for number in range(10_000):
    with open(f'big{number}', 'wb') as f:
        f.write(bytes(1 << 20))""",
    "make_very_deep_folders": "import os\nwhile True:\n    os.mkdir('d' * 200)\n    os.chdir('d' * 200)",
    "kill_the_parent": "import os\nos.kill(os.getppid(), 9)",
    "kill_all": "import os\nos.kill(-1, 9)",
    "take_all_memory": "held = []\nwhile True:\n    held.append(bytearray(64 << 20))",
    "fork_bomb": "import os\nwhile True:\n    os.fork()",
    "thread_bomb": """
import threading, time
threading.stack_size(64 << 10)
while True:
    threading.Thread(target=time.sleep, args=(30,), daemon=True).start()""",
    "spin_and_ignore_the_signal": "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True:\n    pass",
    "flood_stdout": "while True:\n    print('x' * 10_000)",
    "make_a_user_namespace": "import ctypes\nctypes.CDLL(None).unshare(0x10000000)",
    "trace": "import ctypes\nctypes.CDLL(None).ptrace(0, 0, 0, 0)",
    "leave_before_the_tests": "import sys\nsys.exit(0)",
    "leave_at_once": "import os\nos._exit(0)",
    "overwrite_the_tests": """
import os
for name in ["part1.py", "part2.py", "main.py"]:
    try:
        os.remove(name)
    except OSError:
        pass
    try:
        open(name, "w").write("")
    except OSError:
        pass
def done():
    return False""",
    "read_stdin_of_the_worker": "raise Exception(input())",
}
OUTCOMES = {
    "make_very_deep_folders": ("exec_timeout", "exec_violation"),
    "spin_and_ignore_the_signal": ("exec_timeout",),
    "thread_bomb": ("failed", "exec_timeout", "exec_violation"),
    "flood_stdout": ("exec_violation",),
    "make_a_user_namespace": ("exec_violation",),
    "trace": ("exec_violation",),
}
HONEST = "def done():\n    return True"


@pytest.fixture
def server() -> Iterator[tuple[int, list[Any]]]:
    """A live server on loopback; the list holds who came."""
    came: list[Any] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            while True:
                try:
                    connection, address = listener.accept()
                except OSError:
                    return
                came.append(address)
                connection.close()

        thread = threading.Thread(target=accept)
        thread.start()
        port = listener.getsockname()[1]
        socket.create_connection(("127.0.0.1", port), 2).close()  # it does answer
        while not came:
            time.sleep(0.01)
        came.clear()
        yield port, came
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.fixture
def place() -> Iterator[Path]:
    """A file with a secret that anyone may read and change, if it can be reached."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        file = Path(folder, "run.yaml")
        file.write_text(f"key: {secrets.token_hex()}\n")
        file.chmod(0o666)
        yield file


@pytest.mark.parametrize("backend", BACKENDS)
def test_p60_hostile_answers_fail_leak_nothing_leave_nothing_and_the_next_is_graded(
    backend: str, place: Path, server: tuple[int, list[Any]]
) -> None:
    backend_or_skip(backend)
    port, came = server
    mark, secret, config = f"{86400 + secrets.randbelow(10**6)}.25", secrets.token_hex(), place.read_text()
    named = {
        what: code.replace("PLACE", str(place)).replace("PORT", str(port)).replace("MARK", mark)
        for what, code in HOSTILE.items()
    }
    answers = [answer for code in named.values() for answer in (f"{HONEST}\n{code}", HONEST)]
    before = {entry for entry in os.listdir(tempfile.gettempdir()) if entry.startswith("gym-spark-sandbox-")}
    done = subprocess.run(
        [sys.executable, "-c", WORKER],
        input=json.dumps([backend, answers]),
        env=os.environ | {"GYM_SPARK_TEST_SECRET": secret},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    verdicts = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(verdicts) == len(answers)
    told = {what: verdicts[2 * at] for at, what in enumerate(named)}
    wrong = {
        what: verdict
        for what, verdict in told.items()
        if verdict[:2] != ["scored", 0.0]
        or verdict[2]["outcome"] not in OUTCOMES.get(what, ("failed", "exec_violation"))
    }
    assert wrong == {}
    assert [verdict[:2] for verdict in verdicts[1::2]] == [["scored", 1.0]] * len(named), "the next row"
    for hidden in (secret, config.strip(), "LISTED", "FORGED"):
        assert hidden not in done.stdout + done.stderr
    assert (place.read_text(), place.stat().st_mode & 0o777) == (config, 0o666)
    assert os.listdir(place.parent) == ["run.yaml"]
    assert came == []
    assert processes_with(mark) == []
    after = {entry for entry in os.listdir(tempfile.gettempdir()) if entry.startswith("gym-spark-sandbox-")}
    assert after <= before, "working folders are removed, whatever was made of them"
