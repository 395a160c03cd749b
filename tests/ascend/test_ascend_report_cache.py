"""Reports on disk."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import importlib.util
import json
from pathlib import Path

import pytest

pytest.importorskip("triton.backends.ascend", reason="triton-ascend is not installed")
if importlib.util.find_spec("ascendnpuir") is None:
    pytest.skip("ascendnpu-ir is not installed", allow_module_level=True)

from ascend_kernels import A2, A3, product, reduction, rows

import flashasc.ascend.compile as compile_module
from flashasc.ascend import CompileReport, compile_kernel, lower


def test_the_second_report_comes_from_disk(cache_dir: Path) -> None:
    lowered = lower(*rows(), A2)
    first, second = compile_kernel(lowered), compile_kernel(lowered)
    assert (first.cached, second.cached) == (False, True)
    assert second == first
    assert second.log == first.log
    assert hash(second) == hash(first)
    assert [path.suffix for path in cache_dir.iterdir()] == [".json"]
    assert not compile_kernel(lowered, cache=False).cached


@pytest.mark.parametrize("how", ["overflow", "abort", "retry"])
def test_a_bad_outcome_is_kept_too(how: str, cache_dir: Path) -> None:
    case = {"overflow": product(256), "abort": reduction("hypotenuse"), "retry": rows(block_m=64)}
    first = compile_kernel(lower(*case[how], A2))
    second = compile_kernel(lower(*case[how], A2))
    assert second.cached
    assert second == first
    assert not second.ok


def test_the_key_covers_text_target_flags_and_versions(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lowered = lower(*rows(), A2)
    compile_kernel(lowered)
    assert compile_kernel(lowered).cached
    commented = dataclasses.replace(lowered, linalg=lowered.linalg + "// changed\n")
    for other in (commented, lower(*rows(), A3), lower(*rows(), A2, options={"unit_flag": True})):
        assert not compile_kernel(other).cached
    assert not compile_kernel(lowered, extra_flags=["--enable-ops-reorder=false"]).cached
    now = compile_module.versions()
    monkeypatch.setattr(compile_module, "versions", lambda: {**now, "ascendnpu-ir": "1.2.1"})
    assert not compile_kernel(lowered).cached


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"kernel_name": "rows"}', "null"])
def test_a_damaged_entry_is_compiled_again(damage: str, cache_dir: Path) -> None:
    lowered = lower(*rows(), A2)
    first = compile_kernel(lowered)
    (entry,) = cache_dir.iterdir()
    entry.write_text(damage)
    again = compile_kernel(lowered)
    assert not again.cached
    assert dataclasses.replace(again, seconds=first.seconds) == first
    assert compile_kernel(lowered).cached


def test_a_cache_that_cannot_be_written_warns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FLASHASC_CACHE_DIR", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match="not cached: .*set FLASHASC_CACHE_DIR"):
        assert compile_kernel(lower(*rows(), A2)).ok


def test_many_threads_share_the_cache(cache_dir: Path) -> None:
    lowered = [lower(*case, A2) for case in (rows(), product(), reduction("sum"))]
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        reports = list(pool.map(compile_kernel, lowered * 4))
    assert all(report.ok for report in reports)
    assert len(list(cache_dir.iterdir())) == 3
    assert all(json.loads(path.read_text()) for path in cache_dir.iterdir())


def test_a_report_survives_json() -> None:
    report = compile_kernel(lower(*product(256), A2))
    copy = CompileReport.from_json(json.loads(json.dumps(report.to_json())))
    assert copy == report
    assert copy.cached


def test_an_interrupted_write_leaves_nothing(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    lowered = lower(*rows(), A2)
    monkeypatch.setattr(json, "dump", interrupted)
    with pytest.raises(KeyboardInterrupt):
        compile_kernel(lowered)
    monkeypatch.undo()
    assert list(cache_dir.iterdir()) == []
