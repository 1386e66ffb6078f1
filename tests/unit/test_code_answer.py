"""The code in an answer: which block it is, and that not one blank of it is lost (FIELD-NOTES P25)."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gym_spark.verify.code_answer import before_definition, code_of

FULL = "def add(a, b):\n    return a + b\n"
BODY = "    return a + b"
NOTED = 'def add(a, b):\n    """Add.\n\n    ```\n    add(1, 2)\n    ```\n    """\n    return a + b\n'
HELD = "HELP = (\n    '''\n    ~~~\n\t```\n    ''')\ndef add(a, b):\n    return a + b\n"


def lines_after(prefix: str, text: str) -> str:
    return "".join(prefix + line for line in text.splitlines(keepends=True))


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (BODY, BODY),
        (f"\n\n{BODY}\n\n", f"\n\n{BODY}\n\n"),
        ("\treturn a + b", "\treturn a + b"),
        (FULL, FULL),
        ("", ""),
        (f"Here it is:\n```python\n{FULL}```\nDone.", FULL),
        (f"```\n{FULL}```", FULL),
        (f"```py\n{BODY}\n```", f"{BODY}\n"),
        (f"```Python title=x\n{FULL}```", FULL),
        (f"~~~python\n{FULL}~~~", FULL),
        (f"````python\n{FULL}````", FULL),
        (f"````python\n'''\n```\n'''\n{FULL}````", f"'''\n```\n'''\n{FULL}"),
        (f"```python\nfirst = 1\n```\nBetter:\n```python\n{FULL}```", FULL),
        (f"```python\n{FULL}```\nOutput:\n```text\n3\n```", FULL),
        (f"```python\n{FULL}```\nUse:\n```python\nprint(add(1, 2))\n```", FULL),
        (f"```bash\npip install x\n```\n```python\n{FULL}```", FULL),
        ("```c++\nint main() {}\n```", "int main() {}\n"),
        (f"1. First:\n   ```python\n   {FULL[:-1].replace(chr(10), chr(10) + '   ')}\n   ```", FULL),
        (f"```python\n{FULL}", FULL),
        (f"{BODY}\n```", f"{BODY}\n"),
        (f"{BODY}\n```\n\n", f"{BODY}\n"),
        ("Use `add` and ```inline``` marks", "Use `add` and ```inline``` marks"),
        (f"```python\r\n{FULL}```\r\n", FULL),
        ("```python\n```", ""),
        ("```python", ""),
        ("```", ""),
        ("```python\ns = 'é 日本 \U0001f600'\n```", "s = 'é 日本 \U0001f600'\n"),
        (f"```python\n{NOTED}```", NOTED),
        (f"```python\n{HELD}```\nDone.", HELD),
        (f"~~~\n{HELD}~~~", HELD),
        (NOTED, NOTED),
        (f"import math\n\n{HELD}", f"import math\n\n{HELD}"),
        (NOTED.partition("\n")[2], NOTED.partition("\n")[2]),
        (lines_after("    ", f"The code:\n```python\n{NOTED}```\n"), NOTED),
        (f"```python\n{FULL}   ```\nDone.", FULL),
        (lines_after("   ", f"```python\n{NOTED}```\n"), NOTED),
        (f"Code:\n{lines_after(chr(9), f'```python{chr(10)}{NOTED}```{chr(10)}')}Done.", NOTED),
        (f"Code:\n{lines_after('> ', f'```python{chr(10)}{NOTED}```{chr(10)}')}Done.", NOTED),
        (f"Code:\n{lines_after('>', f'```python{chr(10)}{FULL}```{chr(10)}')}Done.", FULL),
        (f"> > ```python\n{lines_after('> > ', FULL)}```\nDone.", FULL),
        (f"```python\n'''\n> ```\n'''\n{FULL}```", f"'''\n> ```\n'''\n{FULL}"),
    ],
    ids=[
        "body only", "body with blank lines around", "tab", "whole program", "empty", "fence", "fence without label",
        "body in a fence", "label in capitals with more", "tildes", "four marks", "marks inside longer ones",
        "the last of two", "output after it", "example of use after it", "shell before it", "another language alone",
        "fence in a list", "cut off", "closing mark alone", "closing mark and blanks", "marks in a line", "CRLF",
        "empty fence", "cut off after the label", "one mark alone", "unicode",
        "docstring with marks", "string with marks", "string with marks in tildes", "bare docstring with marks",
        "bare string with marks", "body with marks", "all indented",
        "closing mark three blanks in", "docstring with marks in a list", "tabs", "quoted", "quoted without blanks",
        "quoted twice and not at the end", "string with a quoted mark",
    ],
)  # fmt: skip
def test_the_code_of_an_answer(answer: str, code: str) -> None:
    assert code_of(answer, "add") == code


def test_without_a_name_to_look_for_the_last_block_counts() -> None:
    assert code_of(f"```python\n{FULL}```\n```python\nprint(1)\n```") == "print(1)\n"


@pytest.mark.parametrize(
    ("source", "before"),
    [
        ("import x\n\ndef add(a):\n    pass\n", "import x\n\n"),
        ("import x\n@cache\n@wraps(f)\ndef add(a):\n", "import x\n"),
        ("def add_more(a):\n    pass\nasync def add(a):\n", "def add_more(a):\n    pass\n"),
        ("class add:\n    pass\n", ""),
        ("x = 1\nadd = lambda a: a\n", "x = 1\n"),
        ("def f():\n    def add(a):\n        pass\n", "def f():\n    def add(a):\n        pass\n"),
    ],
    ids=["imports", "decorators", "async and a longer name", "class", "lambda", "nested does not count"],
)
def test_what_stands_before_a_definition(source: str, before: str) -> None:
    assert before_definition(source, "add") == before


@given(st.text(alphabet=st.sampled_from("ab \t\n#'\"")))
def test_p25_any_code_without_marks_comes_out_as_it_went_in_bare_or_fenced(code: str) -> None:
    assert code_of(code) == code
    assert code_of(f"Text.\n```python\n{code}\n```\nText.") == f"{code}\n"


@pytest.mark.parametrize(
    "piece", ["`", "```\n", "```python\n", " ", "@x\n", "def add", "~~~~", "\n", "> ", "> > ```\n", "\t"]
)
def test_a_huge_answer_takes_no_time(piece: str) -> None:
    began = time.process_time()
    code_of(piece * 200_000, "add")
    before_definition(piece * 200_000, "add")
    assert time.process_time() - began < 2
