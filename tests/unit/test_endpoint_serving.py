"""The embedded model server that cannot start says why, in one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from gym_spark.endpoint.serving import local_model_server
from gym_spark.errors import ConfigError

pytest.importorskip("xllamacpp", reason="the embedded endpoint is the extra 'local'")


def refusal(model: Path) -> str:
    with pytest.raises(ConfigError) as caught, local_model_server(model_path=model):
        pass
    message = str(caught.value)
    assert "\n" not in message
    assert "Traceback" not in message
    assert str(model) in message
    assert "--model-url" in message
    assert len(message) < 500
    return message


def test_a_model_that_is_cut_off_is_named(tmp_path: Path) -> None:
    model = tmp_path / "cut.gguf"
    model.write_bytes(b"GGUF\x03\x00\x00\x00")
    assert "model loading error" in refusal(model)


def test_a_package_that_cannot_be_imported_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tmp_path / "fine.gguf"
    model.write_bytes(b"GGUF")
    (tmp_path / "xllamacpp.py").write_text("raise ImportError('libcuda.so.1: cannot open shared object file')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert "(ImportError: libcuda.so.1: cannot open shared object file); check" in refusal(model)
