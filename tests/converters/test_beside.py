"""Masks, JSON and text beside images, columns of files, and lists of labels become fields."""

from __future__ import annotations

import csv
import gc
import io
import json
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from PIL import Image
from torchvision import tv_tensors
from torchvision.transforms import v2

from fastload import FastLoader, PackedDataset
from fastload._tools.unpack import unpack
from fastload.cli import main
from fastload.converters import _run, append, estimate, pack
from fastload.errors import DecodeError, StoreError, StoreNotFoundError, UsageError
from fastload.storage import Store, open_store
from storage.formats import picture

COUNT = 8


def size_of(index: int) -> tuple[int, int]:
    return 20 + index, 16


def image(index: int) -> bytes:
    return picture(index, *size_of(index))


def mask(index: int, dtype: Any = np.uint8) -> bytes:
    width, height = size_of(index)
    levels = (np.arange(width * height).reshape(height, width) * (index + 1) % 300).astype(dtype)
    buffer = io.BytesIO()
    Image.fromarray(levels).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Images in two class folders."""
    root = tmp_path / "images"
    for index in range(COUNT):
        path = root / "ab"[index % 2] / f"{index}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(image(index))
    return root


@pytest.fixture
def masks(images: Path, tmp_path: Path) -> Path:
    """A mask for each image."""
    root = tmp_path / "masks"
    for path in images.rglob("*.jpg"):
        place = root / path.relative_to(images).with_suffix(".png")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(mask(int(path.stem)))
    return root


def beside(images: Path, suffix: str, content: Callable[[int], str]) -> None:
    for path in images.rglob("*.jpg"):
        path.with_suffix(suffix).write_text(content(int(path.stem)))


def values(store: Store, name: str) -> list[Any]:
    field = store.fields[name]
    return [field.decode(value) for value in store.values(name, np.arange(len(store)))]


def numbers(store: Store) -> list[int]:
    return [int(Path(key).stem) for key in store.keys(np.arange(len(store)))]


def listed(path: Path, header: str, row: Callable[[int], str]) -> Path:
    path.write_text("\n".join([header, *map(row, range(COUNT))]))
    return path


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    """A list in the form that its suffix says."""
    with open(path, "w", newline="") as file:
        if path.suffix == ".jsonl":
            file.writelines(json.dumps(row) + "\n" for row in rows)
        else:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)


def file_of(index: int) -> str:
    return f"images/{'ab'[index % 2]}/{index}.jpg"


# --- masks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"shards": 2}, {"split": "val=0.5"}])
def test_masks_of_the_same_names_become_a_field(
    images: Path, masks: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    report = pack(images, tmp_path / "a.tar", masks=masks, **options)
    assert report.joint == {"mask": "mask"} and report.records == COUNT
    for part in report.parts:
        store = open_store(part.path)
        assert list(store.classes) == ["a", "b"] and store.labels is not None
        assert values(store, "mask") == [mask(index) for index in numbers(store)]


def test_masks_move_with_their_images_without_being_named(
    images: Path, masks: Path, tmp_path: Path
) -> None:
    pack(images, tmp_path / "a.lmdb", masks=masks)
    chain = v2.Compose([v2.CenterCrop(12), v2.RandomHorizontalFlip(1.0), v2.ToImage()])
    dataset = PackedDataset(tmp_path / "a.lmdb", joint=True, transform=chain)
    (batch,) = FastLoader(dataset, COUNT)
    for at, index in enumerate(numbers(dataset.store)):
        levels = tv_tensors.Mask(np.array(Image.open(io.BytesIO(mask(index)))))
        wanted = chain(Image.open(io.BytesIO(image(index))), levels)
        assert torch.equal(batch["image"][at], wanted[0].as_subclass(torch.Tensor))
        assert torch.equal(batch["mask"][at], wanted[1].as_subclass(torch.Tensor))


def test_masks_of_16_bits_keep_all_of_them(images: Path, masks: Path, tmp_path: Path) -> None:
    for path in masks.rglob("*.png"):
        path.write_bytes(mask(int(path.stem), np.uint16))
    pack(images, tmp_path / "a.lmdb", masks=masks)
    dataset = PackedDataset(
        tmp_path / "a.lmdb", joint=True, transform=v2.Compose([v2.CenterCrop(16), v2.ToImage()])
    )
    (batch,) = FastLoader(dataset, COUNT)
    assert batch["mask"].dtype == torch.int32 and int(batch["mask"].max()) > 255


def test_what_moves_is_known_after_copies_appends_and_concats(
    images: Path, masks: Path, tmp_path: Path
) -> None:
    pack(images, tmp_path / "a.lmdb", masks=masks)
    pack(tmp_path / "a.lmdb", tmp_path / "b.h5")
    assert PackedDataset(tmp_path / "b.h5", joint=True).fields == ("mask",)
    for path in (images / "a" / "0.jpg", masks / "a" / "0.png"):
        (path.parents[1] / "more" / "a").mkdir(parents=True)
        path.rename(path.parents[1] / "more" / "a" / f"new{path.suffix}")
    append(tmp_path / "a.lmdb", images / "more", masks=masks / "more")
    assert PackedDataset(tmp_path / "a.lmdb", joint=True).store.joint == {"mask": "mask"}
    both = PackedDataset([tmp_path / "a.lmdb", tmp_path / "b.h5"], joint=True)
    assert len(both) == 2 * COUNT + 1
    pack(images / "more", tmp_path / "c.lmdb")
    with pytest.raises(UsageError, match="joint=True: expected a store that `fastload pack`"):
        PackedDataset(tmp_path / "c.lmdb", joint=True)


def test_a_missing_mask_is_found_before_packing_or_skipped(
    images: Path, masks: Path, tmp_path: Path
) -> None:
    (masks / "b" / "3.png").unlink()
    (masks / "b" / "5.png").unlink()
    with pytest.raises(StoreError, match=r"b/3\.jpg.*no mask.*b/3\.\* \(1 more is wrong\)"):
        pack(images, tmp_path / "a.lmdb", masks=masks)
    assert not (tmp_path / "a.lmdb.partial").exists()
    report = pack(images, tmp_path / "a.lmdb", masks=masks, on_error="skip")
    assert [Path(one.path).name for one in report.skipped] == ["3.jpg", "5.jpg"]
    store = open_store(tmp_path / "a.lmdb")
    assert values(store, "mask") == [mask(index) for index in numbers(store)]
    assert len(store) == COUNT - 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (picture(1, 3, 4), "has 3x4 pixels, the image 23x16"),
        (picture(1, *size_of(3)), "has mode RGB, and one channel"),
        (b"no image", "expected an image, found 8 bytes"),
    ],
)
def test_a_mask_that_does_not_fit_is_named(
    images: Path, masks: Path, tmp_path: Path, content: bytes, message: str
) -> None:
    (masks / "b" / "3.png").write_bytes(content)
    with pytest.raises(DecodeError, match=rf"images/b/3\.jpg.*its mask '.*3\.png'.*{message}"):
        pack(images, tmp_path / "a.lmdb", masks=masks)
    report = pack(images, tmp_path / "b.lmdb", masks=masks, on_error="skip")
    assert report.records == COUNT - 1 and message in report.skipped[0].reason


def test_a_folder_of_other_masks_says_what_it_looked_for(images: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "x.png").write_bytes(mask(0))
    with pytest.raises(StoreError, match=r"mask of 'a/0\.jpg' as '.*other/a/0\.\*', found x\.png"):
        pack(images, tmp_path / "a.lmdb", masks=other)
    with pytest.raises(StoreNotFoundError, match="expected a folder of images, found none"):
        pack(images, tmp_path / "a.lmdb", masks=tmp_path / "none")
    (other / "x.gif").write_bytes(mask(0))
    with pytest.raises(StoreError, match="two of one name"):
        pack(images, tmp_path / "a.lmdb", masks=other)


def test_masks_without_an_image_are_said(images: Path, masks: Path, tmp_path: Path) -> None:
    (masks / "b" / "z.png").write_bytes(mask(0))
    (one,) = pack(images, tmp_path / "a.lmdb", masks=masks).left_out
    assert one.files == 1 and one.example.endswith("b/z.png") and "no image" in one.reason


def test_images_with_masks_are_not_resized_without_them(
    images: Path, masks: Path, tmp_path: Path
) -> None:
    for options in ({"resize": 8}, {"exif": True}):
        with pytest.raises(UsageError, match=r"mask would no longer fit.*joint=True"):
            pack(images, tmp_path / "a.lmdb", masks=masks, **options)


def test_a_mask_that_changed_since_an_interruption_is_noticed(
    images: Path, masks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_run, "_CHUNK", 2)
    last, path = images / "b" / "7.jpg", tmp_path / "a.lmdb"

    def interrupted() -> None:
        path.unlink(missing_ok=True)
        last.write_bytes(b"no image")
        with pytest.raises(DecodeError):
            pack(images, path, masks=masks)
        last.write_bytes(image(7))

    interrupted()
    assert pack(images, path, masks=masks).parts[0].resumed == 6
    store = open_store(path)
    assert values(store, "mask") == [mask(index) for index in numbers(store)]
    interrupted()
    (masks / "a" / "0.png").write_bytes(mask(0, np.uint16))
    with pytest.raises(UsageError, match=r"a\.lmdb\.partial"):
        pack(images, path, masks=masks)


def test_masks_of_a_part_lie_in_a_folder_of_its_name(
    images: Path, masks: Path, tmp_path: Path
) -> None:
    for root in (images, masks):
        root.rename(tmp_path / "train")
        root.mkdir()
        (tmp_path / "train").rename(root / "train")
    report = pack(images, tmp_path / "a.lmdb", masks=masks, split="train")
    assert report.records == COUNT and report.joint == {"mask": "mask"}


def test_a_dry_run_takes_masks_and_leaves_out_what_has_none(
    images: Path, masks: Path, tmp_path: Path
) -> None:
    (masks / "b" / "3.png").unlink()
    found = estimate(images, tmp_path / "a.lmdb", encode="keep", masks=masks)
    assert found[0].sampled == COUNT - 1


def test_the_command_line_packs_masks_and_says_what_moves(
    images: Path, masks: Path, tmp_path: Path
) -> None:
    given = ["pack", str(images), str(tmp_path / "a.lmdb"), "--masks", str(masks)]
    done = CliRunner().invoke(main, given)
    assert done.exit_code == 0, done.output
    assert "fields: mask (mask); PackedDataset(path, joint=True) moves them" in done.stdout


def test_info_and_show_know_what_moves(images: Path, masks: Path, tmp_path: Path) -> None:
    pack(images, tmp_path / "a.lmdb", masks=masks)
    told = CliRunner().invoke(main, ["info", str(tmp_path / "a.lmdb")])
    assert "mask: bytes, moves with the image as mask" in told.stdout
    for name, more in (("all", []), ("named", ["--joint", "mask=mask"])):
        given = ["show", str(tmp_path / "a.lmdb"), "--out", str(tmp_path / f"{name}.png"), *more]
        done = CliRunner().invoke(main, given)
        assert done.exit_code == 0, done.output
    assert (tmp_path / "all.png").read_bytes() == (tmp_path / "named.png").read_bytes()
    pack(tmp_path / "a.lmdb", tmp_path / "b.lmdb")
    assert open_store(tmp_path / "b.lmdb").joint == {"mask": "mask"}


# --- files beside images --------------------------------------------------------------------------


def test_json_and_text_beside_images_become_fields_and_labels(images: Path, tmp_path: Path) -> None:
    flat = images / "a"
    beside(flat, ".json", lambda index: json.dumps({"label": index % 3, "note": "ü"}))
    beside(flat, ".txt", lambda index: f"caption {index} ä")
    report = pack(flat, tmp_path / "a.lmdb")
    store = open_store(tmp_path / "a.lmdb")
    assert report.left_out == () and store.labels is not None
    assert store.labels.tolist() == [index % 3 for index in numbers(store)]
    assert values(store, "txt") == [f"caption {index} ä" for index in numbers(store)]
    assert values(store, "json")[0] == {"label": 0, "note": "ü"}
    # as of the same files in a tar
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for path in sorted(flat.iterdir()):
            tar.add(path, path.name)
    other = open_store(tmp_path / "a.tar")
    assert other.labels is not None and other.labels.tolist() == store.labels.tolist()
    assert other.fields == store.fields


def test_an_entry_of_the_json_or_a_cls_file_is_the_label(images: Path, tmp_path: Path) -> None:
    beside(images, ".json", lambda index: json.dumps({"kind": "xyz"[index % 3]}))
    pack(images, tmp_path / "a.lmdb")
    assert list(open_store(tmp_path / "a.lmdb").classes) == ["a", "b"]  # the folders
    pack(images, tmp_path / "b.lmdb", label_column="kind")
    assert list(open_store(tmp_path / "b.lmdb").classes) == ["x", "y", "z"]
    beside(images / "a", ".cls", lambda index: f"{index}\n")
    pack(images / "a", tmp_path / "c.lmdb")
    labels = open_store(tmp_path / "c.lmdb").labels
    assert labels is not None and labels.tolist() == [0, 2, 4, 6]


def test_files_beside_some_images_are_said_to_be_no_field(images: Path, tmp_path: Path) -> None:
    beside(images / "a", ".txt", str)
    (one,) = pack(images, tmp_path / "a.lmdb").left_out
    assert str(one).endswith("4 of 8 images have such a file: it is no field")
    beside(images / "b", ".txt", str)
    (images / "b" / "readme.txt").write_text("hello")
    (one,) = pack(images, tmp_path / "b.lmdb").left_out
    assert one.files == 1 and one.example.endswith("b/readme.txt")
    assert list(open_store(tmp_path / "b.lmdb").fields) == ["txt"]


def test_bad_json_beside_an_image_is_named(images: Path, tmp_path: Path) -> None:
    beside(images, ".json", lambda index: "{" if index == 3 else "{}")
    with pytest.raises(DecodeError, match=r"b/3\.jpg.*beside it, '.*3\.json' is no JSON"):
        pack(images, tmp_path / "a.lmdb")


@pytest.mark.parametrize("without", [0, 2])  # the first, and another one
def test_one_json_without_a_label_is_named_or_skipped(
    images: Path, tmp_path: Path, without: int
) -> None:
    flat = images / "a"
    beside(flat, ".json", lambda index: json.dumps({} if index == without else {"label": index}))
    with pytest.raises(StoreError, match=rf"'label' of '.*{without}\.json' has no label, as other"):
        pack(flat, tmp_path / "a.lmdb")
    pack(flat, tmp_path / "a.lmdb", on_error="skip")
    labels = open_store(tmp_path / "a.lmdb").labels
    assert labels is not None
    assert labels.tolist() == [index for index in (0, 2, 4, 6) if index != without]


def test_the_end_of_the_line_is_no_part_of_a_class_name(images: Path, tmp_path: Path) -> None:
    flat = images / "a"
    for index in (0, 2, 4, 6):
        text = {0: b"cat\n", 2: b"cat", 4: b"dog\r\n", 6: b"dog"}[index]
        (flat / f"{index}.cls").write_bytes(text)
    pack(flat, tmp_path / "a.lmdb")
    store = open_store(tmp_path / "a.lmdb")
    assert list(store.classes) == ["cat", "dog"]
    assert store.labels is not None and store.labels.tolist() == [0, 0, 1, 1]


def test_text_that_is_no_utf_8_is_named_or_skipped(images: Path, tmp_path: Path) -> None:
    beside(images, ".txt", lambda index: f"caption {index}")
    (images / "b" / "3.txt").write_bytes("naïve".encode("latin-1"))
    with pytest.raises(
        DecodeError, match=r"'.*3\.txt' is no text in UTF-8.*save it as text in UTF"
    ):
        pack(images, tmp_path / "a.lmdb")
    report = pack(images, tmp_path / "a.lmdb", on_error="skip")
    assert [one.path for one in report.skipped] == [str(images / "b" / "3.jpg")]
    assert report.records == COUNT - 1


# --- columns of files -----------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_a_column_of_paths_is_read_as_files(
    images: Path, masks: Path, tmp_path: Path, suffix: str
) -> None:
    rows = [
        {"path": file_of(index), "mask": file_of(index).replace("images", "masks")[:-3] + "png"}
        for index in range(COUNT)
    ]
    path = tmp_path / f"list{suffix}"
    write(path, rows)
    report = pack(path, tmp_path / "a.lmdb", file_columns="mask")
    store = open_store(tmp_path / "a.lmdb")
    assert report.joint == {"mask": "mask"}
    assert values(store, "mask") == [mask(index) for index in range(COUNT)]
    with pytest.raises(UsageError, match="file_columns: expected one of mask, got 'depth'"):
        pack(path, tmp_path / "b.lmdb", file_columns=("mask", "depth"))


def test_a_column_of_any_files_keeps_them_as_they_are(images: Path, tmp_path: Path) -> None:
    beside(images, ".json", lambda index: json.dumps([index]))
    path = listed(
        tmp_path / "list.csv",
        "path,pair,meta",
        lambda index: f"{file_of(index)},{file_of(0)},{file_of(index)[:-3]}json",
    )
    report = pack(path, tmp_path / "a.lmdb", file_columns=["pair", "meta"])
    store = open_store(tmp_path / "a.lmdb")
    assert report.joint == {} and values(store, "pair") == [image(0)] * COUNT
    assert values(store, "meta") == [[index] for index in range(COUNT)]


def test_a_file_that_a_column_lacks_is_named_by_its_line(images: Path, tmp_path: Path) -> None:
    path = listed(
        tmp_path / "list.csv",
        "path,extra",
        lambda index: f"{file_of(index)},{'' if index == 2 else file_of(index)}",
    )
    with pytest.raises(StoreError, match="line 4 of the list names no file in the column 'extra'"):
        pack(path, tmp_path / "a.lmdb", file_columns="extra")
    path.write_text(path.read_text().replace("2.jpg,", "2.jpg,nowhere.bin"))
    with pytest.raises(DecodeError, match=r"a/2\.jpg.*'extra', '.*nowhere\.bin': the file cannot"):
        pack(path, tmp_path / "a.lmdb", file_columns="extra")


# --- Hugging Face's imagefolder -------------------------------------------------------------------


def metadata(images: Path, suffix: str) -> Path:
    """A list of all images but one, with masks."""
    rows = [
        {
            "file_name": f"{'ab'[index % 2]}/{index}.jpg",
            "text": f"caption {index}",
            "mask_file_name": f"../masks/{'ab'[index % 2]}/{index}.png",
        }
        for index in range(COUNT - 1)
    ]
    path = images / f"metadata.{suffix}"
    write(path, rows)
    return path


@pytest.mark.parametrize("suffix", ["jsonl", "csv"])
def test_a_folder_with_metadata_is_packed_by_it(
    images: Path, masks: Path, tmp_path: Path, suffix: str
) -> None:
    metadata(images, suffix)
    report = pack(images, tmp_path / "a.lmdb")
    store = open_store(tmp_path / "a.lmdb")
    assert numbers(store) == list(range(COUNT - 1)) and store.labels is None
    assert values(store, "text") == [f"caption {index}" for index in range(COUNT - 1)]
    assert values(store, "mask") == [mask(index) for index in range(COUNT - 1)]
    (one,) = report.left_out
    assert one.example.endswith("b/7.jpg") and f"metadata.{suffix} does not list it" in one.reason


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("suffix", ["jsonl", "csv"])
def test_a_folder_with_metadata_is_what_hugging_face_reads(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    rows = [
        {
            "file_name": f"{'ab'[index % 2]}/{index}.jpg",
            "pair_file_name": f"{'ba'[index % 2]}/{(index + 1) % COUNT}.jpg",
            "text": f"caption {index}",
            "label": index % 3,
        }
        for index in range(COUNT - 1)
    ]
    write(images / f"metadata.{suffix}", rows)
    theirs = datasets.load_dataset(
        "imagefolder", data_dir=str(images), split="train", cache_dir=str(tmp_path / "hf")
    )
    ours = PackedDataset(pack(images, tmp_path / "a.lmdb").parts[0].path, fields="all")
    assert len(theirs) == len(ours)
    for at in range(len(ours)):
        mine, other = ours[at], theirs[at]
        pair = np.asarray(Image.open(io.BytesIO(mine["pair"])))
        assert np.array_equal(mine["image"].permute(1, 2, 0), np.asarray(other["image"]))
        assert np.array_equal(pair, np.asarray(other["pair"]))
        assert mine["text"] == other["text"] and mine["label"] == other["label"]
    gc.collect()  # of files that pandas has not closed


def test_the_parts_of_a_dataset_with_metadata_are_no_classes(images: Path, tmp_path: Path) -> None:
    (images / "a").rename(images / "train")
    (images / "b").rename(images / "test")
    listed(images / "train" / "metadata.csv", "file_name,text", lambda index: "0.jpg,x")
    with pytest.raises(UsageError, match="those of a split dataset"):
        pack(images, tmp_path / "a.lmdb")
    assert len(open_store(pack(images, tmp_path / "a.lmdb", split="train").parts[0].path)) == COUNT


def test_a_list_called_metadata_without_file_names_is_left_out(
    images: Path, tmp_path: Path
) -> None:
    (images / "metadata.csv").write_text("key,value\nlicence,CC0\n")
    report = pack(images / "a", tmp_path / "b.lmdb")
    assert report.records == COUNT // 2
    report = pack(images, tmp_path / "a.lmdb")
    assert report.records == COUNT and list(open_store(tmp_path / "a.lmdb").classes) == ["a", "b"]


def test_two_lists_of_metadata_are_named(images: Path, masks: Path, tmp_path: Path) -> None:
    for suffix in ("jsonl", "csv"):
        metadata(images, suffix)
    with pytest.raises(StoreError, match=r"metadata\.jsonl' and '.*metadata\.csv': move one away"):
        pack(images, tmp_path / "a.lmdb")


@pytest.mark.parametrize(
    ("more", "match"),
    [
        ({"mask": 1}, "expected one field called 'mask', got two: rename a column"),
        ({"x": {"base64": "?"}}, "invalid base64"),
    ],
)
def test_values_of_a_list_that_are_no_field_are_named(
    images: Path, masks: Path, tmp_path: Path, more: dict[str, Any], match: str
) -> None:
    path = metadata(images, "jsonl")
    write(path, [{**json.loads(line), **more} for line in path.read_text().splitlines()])
    with pytest.raises(StoreError, match=match):
        pack(images, tmp_path / "a.lmdb")


# --- labels ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("1 0 1", [1, 0, 1]),
        ('"1,0,1"', [1, 0, 1]),
        ('"[1, 0, 1]"', [1, 0, 1]),
        ("0.5 0.25 0", [0.5, 0.25, 0]),
    ],
)
def test_numbers_in_text_are_a_label_of_several_classes(
    images: Path, tmp_path: Path, text: str, wanted: list[float]
) -> None:
    path = listed(tmp_path / "list.csv", "path,label", lambda index: f"{file_of(index)},{text}")
    pack(path, tmp_path / "a.lmdb")
    labels = open_store(tmp_path / "a.lmdb").labels
    assert labels is not None and labels.tolist() == [wanted] * COUNT


def test_words_and_lists_of_different_lengths_are_class_names(images: Path, tmp_path: Path) -> None:
    path = listed(
        tmp_path / "list.csv",
        "path,label",
        lambda index: f"{file_of(index)},{'hot dog' if index % 2 else '1 0 1'}",
    )
    pack(path, tmp_path / "a.lmdb")
    assert list(open_store(tmp_path / "a.lmdb").classes) == ["1 0 1", "hot dog"]


@pytest.mark.parametrize("chosen", ["cat,dog,is_red", "cat, dog, is_*", "*[a-z]"])
def test_columns_of_0_and_1_are_one_label(images: Path, tmp_path: Path, chosen: str) -> None:
    path = listed(
        tmp_path / "list.csv",
        "path,cat,dog,is_red",
        lambda index: f"{file_of(index)},{index % 2},{1 - index % 2},{int(index > 3)}",
    )
    with pytest.warns(UserWarning, match="3 columns of 0 and 1.*label_column='cat,dog,is_red'"):
        pack(path, tmp_path / "a.lmdb")
    pack(path, tmp_path / "b.lmdb", label_column=chosen)
    store = open_store(tmp_path / "b.lmdb")
    assert store.labels is not None and store.fields == {}
    assert store.labels.tolist() == [[i % 2, 1 - i % 2, int(i > 3)] for i in range(COUNT)]
    assert list(store.classes) == ["cat", "dog", "is_red"]
    with pytest.raises(UsageError, match=r"label_column: expected one of .*, got 'cow'"):
        pack(path, tmp_path / "c.lmdb", label_column="cat,cow")


def test_a_column_of_a_label_that_is_no_number_is_named(images: Path, tmp_path: Path) -> None:
    path = listed(
        tmp_path / "list.csv",
        "path,cat,dog",
        lambda index: f"{file_of(index)},{'yes' if index == 2 else 1},0",
    )
    with pytest.raises(StoreError, match=r"line 2: expected a number .*, found '1' in 'cat'"):
        pack(path, tmp_path / "a.lmdb", label_column="cat,dog")


def test_a_line_without_a_label_is_named_or_skipped(images: Path, tmp_path: Path) -> None:
    path = listed(
        tmp_path / "list.csv",
        "path,label",
        lambda index: f"{file_of(index)},{'' if index == 2 else index}",
    )
    with pytest.raises(StoreError, match=r"a/2\.jpg.*line 4 of '.*list\.csv' has no label"):
        pack(path, tmp_path / "a.lmdb")
    report = pack(path, tmp_path / "a.lmdb", on_error="skip")
    labels = open_store(tmp_path / "a.lmdb").labels
    assert labels is not None and labels.tolist() == [0, 1, 3, 4, 5, 6, 7]
    assert [one.record for one in report.skipped] == [2]


@pytest.mark.parametrize("member", ["cls", "json"])
def test_a_tar_says_which_record_left_it_without_labels(
    images: Path, tmp_path: Path, member: str
) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for index in range(4):
            text = str(index) if member == "cls" else json.dumps({"label": index})
            parts = {"jpg": image(index), member: b"{}" if index == 2 else text.encode()}
            if index == 2 and member == "cls":
                del parts["cls"]
            for suffix, data in parts.items():
                info = tarfile.TarInfo(f"{index}.{suffix}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    with pytest.warns(UserWarning, match=rf"'{member}'.*because 1 of 4 records has none.*'2'"):
        pack(tmp_path / "a.tar", tmp_path / "a.lmdb")
    with pytest.raises(StoreError, match="the record '2' has no label"):
        pack(tmp_path / "a.tar", tmp_path / "b.lmdb", label_column=member)
    pack(tmp_path / "a.tar", tmp_path / "b.lmdb", label_column=member, on_error="skip")
    assert len(open_store(tmp_path / "b.lmdb")) == 3


# --- names ----------------------------------------------------------------------------------------


def test_absolute_paths_are_shortened_and_no_folder_above_is_in_the_store(
    images: Path, tmp_path: Path
) -> None:
    path = listed(
        tmp_path / "list.csv", "path,label", lambda index: f"{tmp_path / file_of(index)},x"
    )
    pack(path, tmp_path / "a.lmdb")
    store = open_store(tmp_path / "a.lmdb")
    assert store.keys(np.arange(2)) == ["a/0.jpg", "b/1.jpg"]
    assert store.metadata["source"] == "list.csv"
    assert os.fsencode(tmp_path.name) not in (tmp_path / "a.lmdb").read_bytes()
    assert unpack(tmp_path / "a.lmdb", tmp_path / "out").records == COUNT


def test_paths_above_the_list_stay_in_the_folder_that_is_unpacked(
    images: Path, tmp_path: Path
) -> None:
    (tmp_path / "lists").mkdir()
    path = listed(
        tmp_path / "lists" / "list.csv", "path,n", lambda index: f"../{file_of(index)},{index}"
    )
    pack(path, tmp_path / "a.lmdb")
    assert open_store(tmp_path / "a.lmdb").keys(np.arange(1)) == ["a/0.jpg"]
    assert unpack(tmp_path / "a.lmdb", tmp_path / "out").records == COUNT


def test_unsuitable_options_are_refused_with_what_they_are_for(
    images: Path, masks: Path, tmp_path: Path
) -> None:
    pack(images, tmp_path / "a.lmdb")
    path = listed(tmp_path / "list.csv", "path,n", lambda index: f"{file_of(index)},{index}")
    for source in (path, tmp_path / "a.lmdb"):
        with pytest.raises(UsageError, match=r"masks: expected none, got .* folder of images"):
            pack(source, tmp_path / "b.lmdb", masks=masks)
    with pytest.raises(UsageError, match="file_columns: expected none, got"):
        pack(images, tmp_path / "b.lmdb", file_columns="mask")
    with pytest.raises(UsageError, match="masks, annotations: expected a folder of this machine"):
        pack("memory://bucket/imgs", tmp_path / "b.lmdb", masks=masks)
