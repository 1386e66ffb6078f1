"""Sources are read strictly, and a cache is never harmed."""

import gzip
import hashlib
from pathlib import Path

import httpx
import pytest

from gym_spark.errors import ConfigError
from gym_spark.prepare.catalog import SourceSpec
from gym_spark.prepare.sources import cache_folder, read_jsonl, resolve_source

URL = "https://data.example/r1/quiz.jsonl"
BODY = b'{"question": "1+1?", "answer": "2"}\n\n{"question": "2+2?", "answer": "4"}\n'


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return cache_folder()


def written(tmp_path: Path, content: bytes, name: str = "rows.jsonl") -> Path:
    path = tmp_path / name
    path.write_bytes(content)
    return path


def cached_files(cache: Path) -> list[Path]:
    return [path for path in cache.rglob("*") if path.is_file()]


def test_lines_are_numbered_and_blank_ones_skipped(tmp_path):
    assert [(number, row["answer"]) for number, row in read_jsonl(written(tmp_path, BODY))] == [(1, "2"), (3, "4")]


def test_gzip_byte_order_mark_and_unicode_line_separators_are_read(tmp_path):
    content = "\ufeff" + '{"a": "x\u2028y"}\r\n'
    plain = written(tmp_path, content.encode())
    packed = written(tmp_path, gzip.compress(content.encode()), "rows.jsonl.gz")
    assert list(read_jsonl(plain)) == list(read_jsonl(packed)) == [(1, {"a": "x\u2028y"})]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"a": 1', "is not JSON"),
        (b'{"a": NaN}', "NaN is not a JSON value"),
        (b'{"a": -Infinity}', "-Infinity is not a JSON value"),
        (b"[1]", "a JSON list, not an object"),
        (b'{"a": "\xff"}', r"not UTF-8 \(byte 8\)"),
        (b"[" * 100_000, "is not JSON"),
    ],
)
def test_a_malformed_line_names_file_and_line(tmp_path, line, message):
    path = written(tmp_path, b'{"a": 1}\n' + line + b"\n")
    rows = read_jsonl(path)
    assert next(rows) == (1, {"a": 1})
    with pytest.raises(ConfigError, match=message) as caught:
        next(rows)
    assert str(caught.value).startswith(f"{path}:2: ")


def test_a_cut_gzip_file_is_named(tmp_path):
    path = written(tmp_path, gzip.compress(BODY * 50)[:-12], "rows.jsonl.gz")
    with pytest.raises(ConfigError, match=r"rows\.jsonl\.gz' cannot be read"):
        resolve_source(SourceSpec(), [path])


def test_missing_file_and_missing_source_tell_what_to_do(tmp_path):
    with pytest.raises(ConfigError, match=r"no source file '.*none\.jsonl'"):
        resolve_source(SourceSpec(), [tmp_path / "none.jsonl"])
    with pytest.raises(ConfigError, match="--source FILE"):
        resolve_source(SourceSpec())
    with pytest.raises(ConfigError, match="leave out --source"):
        resolve_source(SourceSpec(format="generated"), [tmp_path / "none.jsonl"])


def test_local_files_are_described_without_their_path(tmp_path):
    path = written(tmp_path, BODY)
    (file,) = resolve_source(SourceSpec(url=URL), [path]).files
    assert (file.name, file.bytes, file.rows) == ("rows.jsonl", len(BODY), 2)
    assert file.sha256 == hashlib.sha256(BODY).hexdigest()


def test_records_of_several_files_follow_each_other_and_name_a_missing_key(tmp_path):
    files = [written(tmp_path, BODY, "a.jsonl"), written(tmp_path, b'{"question": "?"}\n', "b.jsonl")]
    source = resolve_source(SourceSpec(), files)
    assert [where for where, _ in source.records("question")] == ["a.jsonl:1", "a.jsonl:3", "b.jsonl:1"]
    with pytest.raises(ConfigError, match=r"b\.jsonl:1: the row has no 'answer' \(it has: question\)"):
        list(source.records("question", "answer"))


def test_a_download_is_checked_cached_and_not_asked_for_again(cache):
    asked = []

    def server(request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url))
        return httpx.Response(200, content=BODY)

    spec = SourceSpec(url=URL, sha256=hashlib.sha256(BODY).hexdigest())
    first = resolve_source(spec, transport=httpx.MockTransport(server))
    again = resolve_source(spec, transport=httpx.MockTransport(server))
    assert asked == [URL]
    assert first == again
    assert first.files[0].name == "quiz.jsonl"
    assert [path.read_bytes() for path in cached_files(cache)] == [BODY]


def test_p04_failed_downloads_leave_the_cache_as_it_was(cache):
    kept = resolve_source(
        SourceSpec(url=URL), transport=httpx.MockTransport(lambda _: httpx.Response(200, content=BODY))
    )

    def dropping(request: httpx.Request) -> httpx.Response:
        raise httpx.RemoteProtocolError("peer closed the connection", request=request)

    other = "https://data.example/r2/quiz.jsonl"
    for transport, message in [
        (httpx.MockTransport(dropping), "cannot be downloaded .*--source FILE"),
        (httpx.MockTransport(lambda _: httpx.Response(404)), "answered 404; .*--source FILE"),
        (httpx.MockTransport(lambda _: httpx.Response(200, content=b"moved")), "has changed: .*--source FILE"),
    ]:
        with pytest.raises(ConfigError, match=message):
            resolve_source(SourceSpec(url=other, sha256="0" * 64), transport=transport)
    assert cached_files(cache) == [kept.files[0].path]
    assert kept.files[0].path.read_bytes() == BODY


def test_a_cached_file_with_another_content_is_refused_and_kept(cache):
    transport = httpx.MockTransport(lambda _: httpx.Response(200, content=BODY))
    (file,) = resolve_source(SourceSpec(url=URL), transport=transport).files
    with pytest.raises(ConfigError, match="delete it"):
        resolve_source(SourceSpec(url=URL, sha256="0" * 64), transport=transport)
    assert file.path.read_bytes() == BODY
