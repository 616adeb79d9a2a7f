"""Labels are found where people put them, named where they are not, and never lost in silence."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from PIL import Image

from fastload import FastLoader, PackedDataset
from fastload.cli import main
from fastload.converters import pack
from fastload.errors import StoreError, UsageError
from fastload.storage import Store, open_store
from storage.formats import picture


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Twelve images in three class folders."""
    root = tmp_path / "imgs"
    for index in range(12):
        path = root / f"c{index % 3}" / f"{index:02d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture(index, 16, 16))
    return root


@pytest.fixture
def splits(images: Path, tmp_path: Path) -> Path:
    """The layout of ImageNet."""
    root = tmp_path / "imagenet"
    root.mkdir()
    (root / "train").symlink_to(images)
    (root / "val" / "c1").mkdir(parents=True)
    (root / "val" / "c1" / "v.jpg").write_bytes(picture(1, 16, 16))
    (root / "test").mkdir()
    (root / "test" / "t.jpg").write_bytes(picture(2, 16, 16))
    return root


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def table(path: Path, header: str, value: Any = lambda index: f"k{index % 2}") -> Path:
    """A list of the images' paths and another column."""
    rows = [f"imgs/c{index % 3}/{index:02d}.jpg,{value(index)}" for index in range(12)]
    path.write_text("\n".join([header, *rows]))
    return path


def packed(source: Any, tmp_path: Path, **options: Any) -> Store:
    return open_store(pack(source, tmp_path / "out.lmdb", **options).parts[0].path)


def labels(store: Store) -> list[Any] | None:
    return None if store.labels is None else store.labels.tolist()


# --- columns --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "header",
    ["filename,class", "image,target", "path,label", "file,label_name", "Image,Class Name",
     "file_path,category", "img-path,Labels", "filepath,class_id"],
)  # fmt: skip
def test_the_usual_names_of_columns_are_recognised(
    images: Path, tmp_path: Path, header: str
) -> None:
    store = packed(table(tmp_path / "list.csv", header), tmp_path)
    assert list(store.classes) == ["k0", "k1"] and store.fields == {}
    assert labels(store) == [index % 2 for index in range(12)]


def test_the_likeliest_name_wins_and_the_other_one_is_told(images: Path, tmp_path: Path) -> None:
    rows = [f'{{"path": "imgs/c0/00.jpg", "class_name": "x{i}", "label": {i}}}' for i in range(3)]
    (tmp_path / "list.jsonl").write_text("\n".join(rows))
    with pytest.warns(UserWarning, match="took the labels of 'label'; 'class_name' may be labels"):
        store = packed(tmp_path / "list.jsonl", tmp_path)
    assert labels(store) == [0, 1, 2] and list(store.fields) == ["class_name"]


def test_a_column_that_looks_like_labels_is_told_with_the_option_that_takes_it(
    images: Path, tmp_path: Path
) -> None:
    path = table(tmp_path / "list.csv", "path,species")
    command = [sys.executable, "-m", "fastload", "pack", path, tmp_path / "a.lmdb"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0 and "12 records, no labels," in done.stdout
    assert "'species' may be labels" in done.stderr
    assert "give --label-column species\n" in done.stderr
    done = run("pack", path, tmp_path / "b.lmdb", "--label-column", "species")
    assert done.exit_code == 0 and "12 records, 2 classes," in done.stdout


def test_columns_of_captions_numbers_and_splits_do_not_look_like_labels(
    images: Path, tmp_path: Path
) -> None:
    path = table(tmp_path / "list.csv", "path,caption", lambda index: f"a picture of {index}")
    assert labels(packed(path, tmp_path)) is None
    path = table(tmp_path / "list.csv", "path,width", lambda index: 640)
    pack(path, tmp_path / "b.lmdb")
    path = table(tmp_path / "list.csv", "path,split", lambda index: "train" if index else "val")
    pack(path, tmp_path / "c.lmdb")


def test_two_columns_of_one_name_are_named(images: Path, tmp_path: Path) -> None:
    path = table(tmp_path / "list.csv", "path,label,label", lambda index: f"a{index},b")
    with pytest.raises(StoreError, match=r"line 1 has two columns called 'label': rename one"):
        packed(path, tmp_path)


def test_lists_of_numbers_of_different_lengths_are_no_classes(images: Path, tmp_path: Path) -> None:
    path = table(tmp_path / "list.csv", "path,label", lambda index: "1 0" + " 1" * (index == 5))
    with pytest.raises(StoreError, match=r"'label': expected equally long .*'1 0' and '1 0 1'"):
        packed(path, tmp_path)


@pytest.mark.parametrize(
    "names",
    [['"1,000"', '"2,345"'], ["2020 01", "2021 02"], ["01", "1"], ["007", "010"],
     ["12345678901234567890", "12345678901234567891"], ["9007199254740993", "1.5"]],
)  # fmt: skip
def test_text_that_a_number_would_change_is_a_class_name(
    images: Path, tmp_path: Path, names: list[str]
) -> None:
    path = table(tmp_path / "list.csv", "path,label", lambda index: names[index % 2])
    store = packed(path, tmp_path)
    assert list(store.classes) == sorted(name.strip('"') for name in names)


def test_numbers_that_no_label_holds_are_refused(images: Path, tmp_path: Path) -> None:
    path = tmp_path / "list.jsonl"
    rows = [{"path": "imgs/c0/00.jpg", "label": label} for label in (1, 12345678901234567890)]
    path.write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(StoreError, match=r"column 'label': expected labels below 2\*\*63"):
        packed(path, tmp_path)


def test_columns_are_named(images: Path, tmp_path: Path) -> None:
    path = table(tmp_path / "list.csv", "where,what")
    with pytest.raises(StoreError, match=r"expected a column called path.*image_column='where'"):
        pack(path, tmp_path / "a.lmdb")
    store = packed(path, tmp_path, image_column="where", label_column="what")
    assert list(store.classes) == ["k0", "k1"]
    for option in ("image_column", "label_column"):
        with pytest.raises(UsageError, match=f"{option}: expected one of .*, got 'other'"):
            pack(path, tmp_path / "a.lmdb", **{"image_column": "where", option: "other"})


def test_a_source_without_columns_says_so(images: Path, tmp_path: Path) -> None:
    for option in ("image_column", "label_column"):
        with pytest.raises(UsageError, match=f"{option}: expected none, got 'x'.*no columns"):
            pack(images, tmp_path / "a.lmdb", **{option: "x"})


def test_a_field_of_a_store_becomes_its_labels(images: Path, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="'species' may be labels"):
        pack(table(tmp_path / "list.csv", "path,species"), tmp_path / "a.lmdb")
    store = packed(tmp_path / "a.lmdb", tmp_path, label_column="species")
    assert list(store.classes) == ["k0", "k1"] and store.fields == {}
    assert labels(store) == [index % 2 for index in range(12)]
    with pytest.raises(UsageError, match="label_column: expected one of species, got 'x'"):
        pack(tmp_path / "a.lmdb", tmp_path / "b.lmdb", label_column="x")


class Samples:
    """A dataset of dicts with an image called img."""

    def __init__(self, **entries: Any) -> None:
        self.entries = {"img": lambda index: Image.new("RGB", (9, 9), (index, 0, 0)), **entries}

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {name: make(index) for name, make in self.entries.items()}


def test_dicts_of_a_dataset_are_read_by_the_usual_names(tmp_path: Path) -> None:
    store = packed(Samples(target=lambda index: index % 3), tmp_path)
    assert labels(store) == [0, 1, 2, 0, 1, 2] and store.fields == {}


def test_entries_of_a_dataset_are_named(tmp_path: Path) -> None:
    data = Samples(fine=lambda index: index, comment=str)
    data.entries["rendered"] = data.entries.pop("img")
    store = packed(data, tmp_path, image_column="rendered", label_column="fine")
    assert labels(store) == list(range(6)) and list(store.fields) == ["comment"]
    assert store.sizes(np.arange(6)).tolist() == [[9, 9]] * 6


def test_text_that_a_dataset_calls_class_is_told(tmp_path: Path) -> None:
    data = Samples(**{"class": lambda index: "cat"})
    with pytest.warns(UserWarning, match="'class' may be labels"):
        store = packed(data, tmp_path)
    assert store.labels is None and list(store.fields) == ["class"]


def test_hugging_face_columns_keep_the_names_of_their_classes(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    names = datasets.ClassLabel(names=["zebra", "ant"])
    features = {"img": datasets.Image(), "fine_label": names, "coarse_label": names}
    rows = {"img": [{"bytes": picture(i, 8, 8), "path": None} for i in range(4)],
            "fine_label": [0, 1, 1, 0], "coarse_label": [1, 1, 1, 1]}  # fmt: skip
    given = datasets.Dataset.from_dict(rows, features=datasets.Features(features))
    with pytest.warns(UserWarning, match="'fine_label', 'coarse_label' may be labels"):
        assert packed(given, tmp_path).labels is None
    pack(given, tmp_path / "b.lmdb", label_column="fine_label")
    store = open_store(tmp_path / "b.lmdb")
    assert list(store.classes) == ["zebra", "ant"] and labels(store) == [0, 1, 1, 0]
    parts = datasets.DatasetDict({"train": given, "test": given.select([1])})
    with pytest.raises(UsageError, match=r"found several \(train, test\): .* split='train'"):
        pack(parts, tmp_path / "c.lmdb")
    report = pack(parts, tmp_path / "c.lmdb", split="test", label_column="fine_label")
    assert report.records == 1


# --- tars of class folders ------------------------------------------------------------------------


def archive(path: Path, folder: Path, name: str) -> Path:
    with tarfile.open(path, "w") as tar:
        tar.add(folder, name)
    return path


@pytest.mark.parametrize("above", [".", "imgs", "data/imgs"])
def test_a_tar_of_class_folders_has_the_classes_of_the_folder(
    images: Path, tmp_path: Path, above: str
) -> None:
    (images / "c1" / "deeper").mkdir()
    (images / "c1" / "deeper" / "x.jpg").write_bytes(picture(1, 16, 16))
    path = archive(tmp_path / "a.tar", images, above)
    found = packed(path, tmp_path)
    assert list(found.classes) == ["c0", "c1", "c2"]
    want = [int(Path(key).parts[len(Path(above).parts)][1]) for key in found.keys(
        np.arange(len(found)))]  # fmt: skip
    assert labels(found) == want and labels(open_store(path)) == want


def test_batches_of_a_tar_of_class_folders_have_labels(images: Path, tmp_path: Path) -> None:
    batch, given = next(iter(FastLoader(archive(tmp_path / "a.tar", images, "."), batch_size=2)))
    assert batch.shape == (2, 3, 16, 16) and given.tolist() == [0, 0]


def test_a_tar_that_is_no_set_of_class_folders_has_no_labels(images: Path, tmp_path: Path) -> None:
    beside = images / "beside.jpg"
    beside.write_bytes(picture(1, 16, 16))
    assert open_store(archive(tmp_path / "loose.tar", images, "imgs")).labels is None
    beside.unlink()
    assert open_store(archive(tmp_path / "one.tar", images / "c0", "imgs/c0")).labels is None
    (images / "c0" / "00.txt").write_text("a caption")
    assert open_store(archive(tmp_path / "samples.tar", images, "imgs")).labels is None
    splits = tmp_path / "splits.tar"
    with tarfile.open(splits, "w") as tar:
        tar.add(images / "c1", "data/train/c1")
        tar.add(images / "c2", "data/val/c2")
    assert open_store(splits).labels is None


# --- folders of a split dataset -------------------------------------------------------------------


def test_the_folders_of_a_split_dataset_are_no_classes(splits: Path, tmp_path: Path) -> None:
    message = r"class folders, found those of a split dataset \(test, train, val\).*split='test'"
    for attempt in (
        lambda: pack(splits, tmp_path / "a.lmdb"),
        lambda: open_store(splits),
        lambda: PackedDataset(splits),
        lambda: FastLoader(str(splits)),
    ):
        with pytest.raises(UsageError, match=message):
            attempt()
    done = run("pack", splits, tmp_path / "a.lmdb")
    assert done.exit_code == 2 and "pack one with --split test\n" in done.stderr
    assert not (tmp_path / "a.lmdb").exists()


def test_a_split_is_packed_by_its_name(splits: Path, images: Path, tmp_path: Path) -> None:
    done = run("pack", splits, tmp_path / "train.lmdb", "--split", "train")
    assert done.exit_code == 0 and "train.lmdb: 12 records, 3 classes," in done.stdout
    assert list(open_store(tmp_path / "train.lmdb").classes) == ["c0", "c1", "c2"]
    report = pack(splits, tmp_path / "test.lmdb", split="test")
    assert report.records == 1 and report.parts[0].labels is None
    with pytest.raises(UsageError, match=r"NAME=SHARE.*got 'tarin': it has test, train, val"):
        pack(splits, tmp_path / "x.lmdb", split="tarin")


def test_a_class_may_be_called_train(images: Path, tmp_path: Path) -> None:
    (images / "c0").rename(images / "train")
    assert list(open_store(images).classes) == ["c1", "c2", "train"]
    alone = tmp_path / "vehicles"
    (alone / "train").mkdir(parents=True)
    (alone / "train" / "ice.jpg").write_bytes(picture(1, 8, 8))
    assert list(open_store(alone).classes) == ["train"]


# --- what is said of them -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "words"),
    [("k{}", "12 classes"), ("k", "1 class"), ("{}", "labels int64"), ("0.{}", "labels float64")],
)
def test_pack_and_info_say_what_the_labels_are(
    images: Path, tmp_path: Path, value: str, words: str
) -> None:
    path = table(tmp_path / "list.csv", "path,label", value.format)
    assert f"a.lmdb: 12 records, {words}, " in run("pack", path, tmp_path / "a.lmdb").stdout
    shown = run("info", tmp_path / "a.lmdb").stdout.splitlines()[0]
    assert shown.endswith(f"a.lmdb: 12 records, {words}")
    done = run("pack", path, tmp_path / "b.lmdb", "--json")
    (part,) = json.loads(done.stdout)["parts"]
    assert part["labels"] in ("int64", "float64") and part["classes"] == len(
        open_store(tmp_path / "b.lmdb").classes
    )


def test_without_labels_pack_and_info_say_so(images: Path, tmp_path: Path) -> None:
    done = run("pack", images / "c0", tmp_path / "a.lmdb")
    assert "a.lmdb: 4 records, no labels, " in done.stdout
    assert "a.lmdb: 4 records, no labels\n" in run("info", tmp_path / "a.lmdb").stdout
