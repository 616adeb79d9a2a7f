"""Every suite runs at toy size and writes the rows it promises."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner
from PIL import Image

from bench import memory
from bench.__main__ import main
from bench.suites import SUITES
from bench_rows import rows_of, rows_of_any, run
from fastload import _native

pytest.importorskip("torchvision")


pytestmark = pytest.mark.usefixtures("forked")


@pytest.mark.parametrize(
    ("suite", "variant", "loaders"),
    [
        ("imagenet-train", "float32", "torch-pil,fastload-lmdb"),
        ("imagenet-eval", "float32", "fastload-lmdb"),
        pytest.param("small-images", "png", "torch-v2,fastload-folder", marks=pytest.mark.long),
        pytest.param("imagenet-train", "webp", "fastload-lmdb", marks=pytest.mark.long),
        ("raw-train", "channels_last", "fastload-lmdb-raw"),
        pytest.param("augment", "plain", "fastload-lmdb", marks=pytest.mark.long),
        pytest.param("augment", "jitter", "torch-pil,fastload-folder", marks=pytest.mark.long),
        pytest.param("augment", "randaugment", "torch-v2,fastload-lmdb", marks=pytest.mark.long),
        pytest.param("augment", "trivialaugment", "fastload-lmdb", marks=pytest.mark.long),
        ("augment", "mixup", "torch-v2,fastload-folder"),
        ("augment", "large", "fastload-folder-scaled"),
    ],
)
def test_throughput_suites_measure_and_check_each_loader(
    cache: Path, suite: str, variant: str, loaders: str
) -> None:
    rows = rows_of(cache, suite, "--loaders", loaders, "--variant", variant)
    assert [row["loader"] for row in rows] == loaders.split(",")
    for row in rows:
        assert (row["metric"], row["unit"]) == ("throughput", "images/s")
        assert len(row["check"]["mean"]) == 3
        assert all(rate > 0 for rate in row["first_epochs"])
        assert len(row["first_epochs"]) == 1
        if suite == "imagenet-eval":
            assert row["check"]["levels_off"] == 0.0


def test_pack_says_speed_and_size(cache: Path) -> None:
    rows = rows_of(cache, "pack", "--loaders", "torch-pil,fastload-lmdb,fastload-folder")
    assert {row["loader"] for row in rows} == {"fastload-lmdb"}  # the others pack nothing
    figures = {row["metric"]: row["median"] for row in rows}
    assert figures["pack"] >= figures["pack, on the disk"] > 0
    assert 0.9 < figures["size"] < 3


def test_cold_measures_epochs(cache: Path) -> None:
    rows = rows_of(cache, "cold", "--loaders", "torch-pil,fastload-lmdb")
    for metric in ("throughput", "first batch"):
        found = [row["loader"] for row in rows if row["metric"] == metric]
        assert found == ["torch-pil", "fastload-lmdb"]


@pytest.mark.parametrize(
    ("variant", "most"),
    [
        ("cold", 1.05),
        ("warm", 0.01),
        pytest.param("half", 0.9, marks=pytest.mark.long),
    ],
)
def test_remote_counts_bytes_and_requests(cache: Path, variant: str, most: float) -> None:
    pytest.importorskip("obstore", reason="obstore is not installed")
    rows = rows_of(cache, "remote", "--loaders", "fastload-remote", "--variant", variant)
    figures = {row["metric"]: row["median"] for row in rows}
    assert figures["throughput"] > 0
    assert figures["bytes"] <= most and figures["requests"] <= 2


def test_buckets_pad_nothing_where_mixed_batches_are_padded(cache: Path) -> None:
    rows = rows_of_any(cache, "buckets", "photos")
    figures = {(row["loader"], row["metric"]): row["median"] for row in rows}
    assert figures["fastload-buckets", "padding"] == 0
    assert 0 < figures["fastload-padded", "padding"] < 100
    assert 0 < figures["torch-padded", "padding"] < 100
    assert all(rate > 0 for (_, metric), rate in figures.items() if metric == "throughput")


def test_caches_are_measured_in_the_first_epoch_and_in_later_ones(cache: Path) -> None:
    rows = rows_of(cache, "cache", "--variant", "small")
    kinds = ("ram", "shm", "dct", "decoded")
    metrics = [f"{epoch} epoch, cache={kind}" for epoch in ("first", "later") for kind in kinds]
    assert [row["metric"] for row in rows] == metrics
    assert all(row["setting"]["bytes_an_image"] > 0 for row in rows)


def test_dropped_pages_are_read_from_the_disk(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(bytes(1 << 20))
    before = memory.nbytes_read(os.getpgrp())
    path.read_bytes()
    assert memory.nbytes_read(os.getpgrp()) - before < 1 << 20
    memory.drop([path])
    path.read_bytes()
    if memory.nbytes_read(os.getpgrp()) == before:
        pytest.skip("this file system keeps its pages in memory")
    assert memory.nbytes_read(os.getpgrp()) - before >= 1 << 20


def test_every_suite_has_a_toy_test() -> None:
    tested = {"imagenet-train", "imagenet-eval", "small-images", "raw-train", "augment"}
    elsewhere = {
        "any-dataset",
        "never-slower",
        "scripts",
        "buckets",
    }
    assert set(SUITES) - elsewhere == tested | {
        "pack",
        "startup",
        "memory",
        "cold",
        "cache",
        "remote",
    }


@pytest.mark.parametrize("suite", ["imagenet-train", "startup", "memory"])
def test_a_loader_that_cannot_take_part_is_a_row_with_its_reason(
    cache: Path, tmp_path: Path, suite: str
) -> None:
    path = tmp_path / "absent.json"
    done = run(cache, suite, "--loaders", "torch-array,ffcv", "--json", path)
    assert done.exit_code == 0, done.output
    rows = json.loads(path.read_text())
    assert [(row["loader"], row["median"]) for row in rows] == [
        ("torch-array", None),
        ("ffcv", None),
    ]
    assert all(row["reason"] for row in rows)


@pytest.mark.parametrize("what", ["--loaders", "--variant"])
def test_an_unknown_name_is_answered_with_those_there_are(cache: Path, what: str) -> None:
    done = run(cache, "imagenet-train", what, "nonsense")
    assert done.exit_code == 2
    assert "no loader nonsense" in done.output or "no variant nonsense" in done.output
    assert "there are:" in done.output


def test_data_without_images_is_a_clear_error(cache: Path, tmp_path: Path) -> None:
    done = run(cache, "imagenet-train", "--data", tmp_path)
    assert done.exit_code == 2
    assert "expected class folders" in done.output


def test_list_names_every_suite_and_loader() -> None:
    from bench.loaders import REMOTE, SCALED, WHERE

    done = CliRunner().invoke(main, ["list"], terminal_width=200, env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    for name in (*SUITES, *WHERE, *SCALED, *REMOTE):
        assert name in done.output


@pytest.mark.parametrize(
    ("variant", "engine"),
    [
        pytest.param("pil", "torch", marks=pytest.mark.long),
        ("stream", "torch"),
        pytest.param("v2", "torch", marks=pytest.mark.long),
        pytest.param("small-v2", "torch", marks=pytest.mark.long),
        pytest.param("two-views", "torch", marks=pytest.mark.long),
        pytest.param("ten-crops", "torch", marks=pytest.mark.long),
        ("image-and-mask", "torch"),
        pytest.param("numpy", "torch", marks=pytest.mark.long),
        ("huggingface", "native"),
        ("nested", "torch"),
        ("cifar", "native"),
        ("tensors", "gather"),
    ],
)
def test_any_dataset_is_compared_with_dataloader(cache: Path, variant: str, engine: str) -> None:
    rows = rows_of_any(cache, "any-dataset", variant)
    assert [row["setting"]["workers"] for row in rows] == [0, 2]
    for row in rows:
        low, high = row["setting"]["interval_95"]
        assert low <= row["setting"]["mean"] <= high
        assert row["setting"]["engine"] == engine or engine == "native"


@pytest.mark.parametrize("variant", ["albumentations", "cv2"])
def test_any_dataset_measures_albumentations_where_it_is_installed(
    cache: Path, variant: str
) -> None:
    installed = all(importlib.util.find_spec(name) for name in ("albumentations", "cv2"))
    rows = rows_of_any(cache, "any-dataset", variant)
    if installed:
        assert [row["setting"]["workers"] for row in rows] == [0, 2]
    else:
        (row,) = rows
        assert row["reason"].startswith("not installed: ")


@pytest.mark.parametrize("folder", [".", "class0"])
def test_any_dataset_takes_images_of_any_suffix_with_or_without_class_folders(
    cache: Path, tmp_path: Path, folder: str
) -> None:
    (tmp_path / "images" / folder).mkdir(parents=True)
    for number, suffix in enumerate((".JPEG", ".jpg", ".png")):
        picture = Image.new("RGB", (40, 30), (80 * number, 0, 0))
        picture.save(tmp_path / "images" / folder / f"{number}{suffix}")
    path = tmp_path / "rows.json"
    done = run(cache, "any-dataset", "--data", tmp_path / "images", "--variant", "pil",
               "--threads", 1, "--json", path)  # fmt: skip
    assert done.exit_code == 0, done.output
    rows = json.loads(path.read_text())
    assert {row["images"] for row in rows} == {24}
    assert {row["data"] for row in rows} == {"given"}


def test_rows_say_which_instruction_set_fastload_was_told_to_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FASTLOAD_SIMD", "")  # which the option sets for the loaders' processes
    core = _native.load()
    assert core is not None
    best = core.simd()
    try:
        (found,) = rows_of(
            tmp_path, "small-images", "--loaders", "fastload-folder", "--simd", "scalar"
        )
        assert os.environ["FASTLOAD_SIMD"] == "scalar"
    finally:
        core.set_simd("")
    assert found["variant"] == "jpeg, scalar"
    assert found["machine"]["instruction_set"] == f"scalar, as told, of a processor with {best}"
    absent = "avx2" if best == "neon" else "neon"
    refused = run(tmp_path, "small-images", "--loaders", "fastload-folder", "--simd", absent)
    assert refused.exit_code == 2 and f"{absent} does not run here" in refused.output
