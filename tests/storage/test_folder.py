from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from torchvision import transforms as tv
from torchvision.datasets import ImageFolder

from fastload import FastLoader
from fastload.errors import StoreError, StoreNotFoundError, UnreadableError
from fastload.storage import open_store
from fastload.storage._probe import known_sizes
from fastload.storage.folder import IMAGE_SUFFIXES, FolderStore
from storage.formats import picture

datasets = pytest.importorskip("torchvision.datasets")


def touch(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")


def paths(store: FolderStore) -> list[str]:
    return list(store.files)


def test_order_labels_and_classes_are_those_of_image_folder(tmp_path: Path) -> None:
    touch(
        tmp_path, "b/2.JPG", "b/10.jpg", "b/sub/z.png", "b/sub-1/a.png", "b/Sub/q.webp", "b/n.txt",
        "B/x.jpeg", "a b/1.tiff", "a b/.hidden.jpg", "ä/1.bmp", "猫/deep/er/1.ppm", "猫/1.pgm",
        "b/sub/noext", "b/archive.jpg.gz", "猫/2.tif",
    )  # fmt: skip
    reference = datasets.ImageFolder(str(tmp_path))
    store = open_store(tmp_path)
    assert isinstance(store, FolderStore)
    assert paths(store) == [path for path, _ in reference.samples]
    assert store.labels is not None and store.labels.tolist() == reference.targets
    assert store.classes == reference.classes


def test_endings_of_image_folder_need_no_plugin_of_pillow() -> None:
    assert IMAGE_SUFFIXES == datasets.folder.IMG_EXTENSIONS


def test_every_file_that_pillow_can_read_is_an_image(tmp_path: Path) -> None:
    image = Image.new("RGB", (16, 12), (200, 30, 60))
    for suffix, name in Image.registered_extensions().items():
        path = tmp_path / f"written{suffix}"
        modes = ("RGB", "P", "1") if name not in ("EPS", "IM") else ()  # IM is deprecated
        for mode in modes:
            try:
                image.convert(mode).save(path)
                with Image.open(path) as read:
                    read.load()
                break
            except (OSError, ValueError, KeyError):  # not in this mode, or not at all
                path.unlink(missing_ok=True)
    written = {path.name for path in tmp_path.iterdir()}
    assert {"written.gif", "written.tga", "written.jfif", "written.mpo"} <= written
    touch(tmp_path, "read.psd", "read.fli", "no.h5", "no.pdf", "no.mpg", "no.eps", "no.txt", "jpg")
    store = FolderStore(tmp_path)
    names = [os.path.basename(path) for path in store.files]
    assert set(names) == {*written, "read.psd", "read.fli"}
    sizes = store.sizes(np.arange(len(store)))
    assert all(sizes[names.index(name)].min() > 0 for name in written)


def test_a_plugin_of_pillow_makes_its_files_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    touch(tmp_path, "1.jpg", "2.mine")
    assert len(FolderStore(tmp_path)) == 1
    Image.init()
    monkeypatch.setitem(Image.EXTENSION, ".mine", "MINE")
    store = FolderStore(tmp_path)
    assert len(store) == 2 and not store.left_out


def test_what_is_left_out_is_counted_by_the_reason(tmp_path: Path) -> None:
    touch(
        tmp_path, "a/1.jpg", "a/1.json", "b/2.jpg", "b/2.JSON", "b/noext", "b/x.hdf", "stray.jpg",
    )  # fmt: skip
    with pytest.warns(UserWarning, match="1 image lies in"):
        store = FolderStore(tmp_path)
    assert [(one.files, os.path.relpath(one.example, tmp_path)) for one in store.left_out] == [
        (2, "a/1.json"), (1, "b/x.hdf"), (1, "b/noext"), (1, "stray.jpg"),
    ]  # fmt: skip
    assert str(store.left_out[0]) == (
        f"2 files, such as {tmp_path}/a/1.json: Pillow, as installed, reads no image ending in "
        ".json"
    )
    assert open_store([store, store]).left_out == (*store.left_out, *store.left_out)


def test_a_link_that_leads_nowhere_is_no_image_less(tmp_path: Path) -> None:
    touch(tmp_path, "1.jpg")
    (tmp_path / "2.jpg").symlink_to(tmp_path / "nothing.jpg")
    assert len(FolderStore(tmp_path)) == 2  # reading it is an error, as in class folders


def test_links_to_folders_are_followed_as_image_folder_does(tmp_path: Path) -> None:
    touch(tmp_path, "real/c/1.jpg", "real/c/2.jpg")
    (tmp_path / "root" / "a").mkdir(parents=True)
    touch(tmp_path, "root/b/1.jpg")
    os.symlink(tmp_path / "real" / "c", tmp_path / "root" / "a" / "linked")
    reference = datasets.ImageFolder(str(tmp_path / "root"))
    assert paths(FolderStore(tmp_path / "root")) == [path for path, _ in reference.samples]


@pytest.mark.parametrize("link", ["a/up", "a/deep/up", "c"])
def test_links_that_lead_back_are_refused_instead_of_followed_for_ever(
    tmp_path: Path, link: str
) -> None:
    for name in ("a", "a/deep", "b"):
        (tmp_path / "imgs" / name).mkdir(parents=True)
        (tmp_path / "imgs" / name / "1.jpg").write_bytes(picture(1, 8, 8))
    (tmp_path / "imgs" / link).symlink_to(tmp_path / "imgs", target_is_directory=True)
    with pytest.raises(StoreError, match="a link back to") as caught:
        FolderStore(tmp_path / "imgs")
    assert caught.value.path == str(tmp_path / "imgs" / link)


def test_work_in_progress_beside_its_images_is_no_class(tmp_path: Path) -> None:
    (tmp_path / "1.jpg").write_bytes(picture(1, 8, 8))
    (tmp_path / "imgs.lmdb.partial").mkdir()
    store = FolderStore(tmp_path)
    assert len(store) == 1 and store.labels is None


def test_class_folder_without_images_is_refused_as_by_image_folder(tmp_path: Path) -> None:
    touch(tmp_path, "a/1.jpg", "empty/readme.txt")
    with pytest.raises(FileNotFoundError):
        datasets.ImageFolder(str(tmp_path))
    with pytest.raises(StoreNotFoundError, match="none in empty"):
        FolderStore(tmp_path)


def test_flat_folder_has_no_labels_and_is_sorted_by_name(tmp_path: Path) -> None:
    touch(tmp_path, "b.jpg", "B.png", "a 1.webp", "notes.txt")
    store = FolderStore(tmp_path)
    assert store.keys(np.arange(3)) == ["B.png", "a 1.webp", "b.jpg"]
    assert store.labels is None and store.classes == []


def test_images_beside_class_folders_are_left_out_with_a_warning(tmp_path: Path) -> None:
    touch(tmp_path, "a/1.jpg", "stray.jpg")
    with pytest.warns(UserWarning, match="1 image lies in"):
        store = FolderStore(tmp_path)
    assert store.keys(np.arange(1)) == ["a/1.jpg"]


def test_from_samples_keeps_the_dataset_s_own_order(tmp_path: Path) -> None:
    samples = [(str(tmp_path / "z.jpg"), 1), (str(tmp_path / "a.jpg"), 0), ("/else/b.jpg", 1)]
    store = FolderStore.from_samples(samples, ["no", "yes"], root=tmp_path)
    assert paths(store) == [path for path, _ in samples]
    assert store.labels is not None and store.labels.tolist() == [1, 0, 1]
    assert store.classes == ["no", "yes"]
    assert store.keys(np.arange(3)) == ["z.jpg", "a.jpg", "/else/b.jpg"]


def test_file_name_that_is_no_text_is_kept(tmp_path: Path) -> None:
    name = b"\xff\xfe\x80.jpg"
    (tmp_path / os.fsdecode(name)).write_bytes(picture(0, 7, 5))
    store = FolderStore(tmp_path)
    assert os.fsencode(store.files[0]).endswith(name)
    assert store.sizes(np.array([0])).tolist() == [[7, 5]]


def test_sizes_come_from_headers_of_every_kind(tmp_path: Path) -> None:
    for index, suffix in enumerate(sorted(IMAGE_SUFFIXES)):
        mode = "L" if suffix == ".pgm" else "RGB"
        Image.new(mode, (20 + index, 10)).save(tmp_path / f"{index:02d}{suffix}")
    (tmp_path / "99.jpg").write_bytes(b"no image")
    store = FolderStore(tmp_path)
    count = len(IMAGE_SUFFIXES)
    order = np.random.default_rng(0).permutation(count + 1)
    expected = [[20 + i, 10] if i < count else [0, 0] for i in order]
    assert store.sizes(order).tolist() == expected
    for path in list(store.files):
        os.remove(path)
    assert store.sizes(order).tolist() == expected  # read once


def test_file_list_behaves_as_a_sequence_and_pickles(tmp_path: Path) -> None:
    touch(tmp_path, *(f"{i}.jpg" for i in range(5)))
    store = pickle.loads(pickle.dumps(FolderStore(tmp_path)))
    assert len(store.files) == 5
    assert store.files[-1] == str(tmp_path / "4.jpg")
    assert store.files[1:3] == [str(tmp_path / "1.jpg"), str(tmp_path / "2.jpg")]
    with pytest.raises(IndexError):
        store.files[5]


@pytest.mark.parametrize("on_error", ["raise", "replace"])
@pytest.mark.native
def test_a_file_that_cannot_be_read_is_not_called_damaged(
    tmp_path: Path, logged: list[str], on_error: Any
) -> None:
    (tmp_path / "a").mkdir()
    for name in "0123":
        (tmp_path / "a" / f"{name}.jpg").write_bytes(picture(1, 16, 16))
    dataset = ImageFolder(tmp_path, tv.Compose([tv.Resize((8, 8)), tv.ToTensor()]))
    (tmp_path / "a" / "1.jpg").unlink()  # after it was listed
    (tmp_path / "a" / "2.jpg").unlink()
    (tmp_path / "a" / "2.jpg").symlink_to("nowhere.jpg")
    (tmp_path / "a" / "3.jpg").unlink()
    (tmp_path / "a" / "3.jpg").symlink_to("3.jpg")  # cannot be followed
    words = {1: "No such file or directory", 2: "No such file or directory", 3: "Too many levels"}
    for index, reason in words.items():
        loader = FastLoader(dataset, 2, sampler=[0, index], num_workers=1, on_error=on_error)
        if on_error == "raise":
            with pytest.raises(StoreError, match=f"the record cannot be read: {reason}") as caught:
                list(loader)
            assert caught.value.path == str(tmp_path / "a" / f"{index}.jpg")
            assert isinstance(caught.value, FileNotFoundError) == (index < 3)  # as with DataLoader
        else:
            list(loader)
            assert f"the record cannot be read: {reason}" in "".join(logged)
            logged.clear()


@pytest.mark.timeout(60)
@pytest.mark.native
def test_a_pipe_among_the_images_is_an_error_and_never_waited_for(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    for name in "012":
        (folder / f"{name}.jpg").write_bytes(picture(1, 16, 16))
    dataset = ImageFolder(tmp_path, tv.Compose([tv.Resize((8, 8)), tv.ToTensor()]))
    for path in ("pipe.jpg", "read.jpg"):
        os.mkfifo(folder / path)
        dataset.samples.append((str(folder / path), 0))
    options: dict[str, Any] = {
        "batch_size": 5,
        "num_workers": 1,
    }
    loader = FastLoader(dataset, **options)
    assert "store: folder, 5 records" in loader.explain()
    with pytest.raises(StoreError, match="cannot be read: it is not a regular file"):
        list(loader)
    skipping = FastLoader(dataset, on_error="skip", max_errors=2, **options)
    assert [len(labels) for _, labels in skipping] == [3]
    (folder / "0.jpg").unlink()  # its size is known by now
    os.mkfifo(folder / "0.jpg")
    with pytest.raises(StoreError, match="cannot read the record: it is not a regular file"):
        list(FastLoader(dataset, sampler=[0], **options))


@pytest.mark.parametrize("known", [False, True], ids=["size unknown", "size known"])
def test_a_file_that_the_system_does_not_read_is_an_oserror_as_for_torch(
    tmp_path: Path, known: bool
) -> None:
    path = tmp_path / "a" / "1.jpg"
    path.parent.mkdir()
    path.write_bytes(picture(1, 16, 16))
    dataset = ImageFolder(tmp_path, tv.ToTensor())
    loader = FastLoader(dataset)
    if known:  # then the core opens the file first, else Python does
        list(loader)
    path.unlink()
    path.mkdir()
    with pytest.raises(UnreadableError, match="Is a directory") as caught:
        list(loader)
    assert isinstance(caught.value, OSError) and isinstance(caught.value, StoreError)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.path) == (str(caught.value), str(path))


def test_sizes_are_read_once_each_and_without_what_takes_long_to_import(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []

    def probe(indices: np.ndarray) -> np.ndarray:
        asked.extend(indices.tolist())
        return np.stack([indices + 1, indices + 2], axis=1)

    monkeypatch.setattr(np, "unique", None)  # it imports numpy.ma
    sizes = np.zeros((10, 2), np.int32)
    for _ in range(2):
        found = known_sizes(sizes, np.array([5, 0, 5, 9, 0]), probe)
        assert found.tolist() == [[6, 7], [1, 2], [6, 7], [10, 11], [1, 2]]
    assert asked == [0, 5, 9]


def test_a_class_folder_whose_files_are_no_images_by_name_says_what_they_are(
    tmp_path: Path,
) -> None:
    for name in ("a/1.png", "a/notes.txt", "b/1", "b/2"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(picture(1, 4, 4))
    said = r"found none in b \(2 files, such as .*/b/1: Pillow, .* without a suffix\): delete"
    with pytest.raises(StoreNotFoundError, match=said):
        FolderStore(tmp_path)
