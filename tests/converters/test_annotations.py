"""COCO, VOC and YOLO become boxes, classes and masks, as the readers of these formats have them."""

from __future__ import annotations

import dataclasses
import io
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from PIL import Image
from torchvision import datasets, tv_tensors
from torchvision.transforms import v2

from fastload import FastLoader, PackedDataset, info
from fastload.cli import main
from fastload.converters import _annotations, append, pack
from fastload.errors import (
    DecodeError,
    MissingDependencyError,
    StoreError,
    StoreNotFoundError,
    UsageError,
)
from fastload.storage import Store, open_store
from storage.formats import picture

COUNT = 7
NAMES = ["cat", "dog", "owl"]
IDS = [7, 3, 90]  # of COCO's categories, in the order of the file
BY_ID = ["dog", "cat", "owl"]


@dataclasses.dataclass
class Scene:
    """Images with the same boxes in every format.

    Attributes:
        root: has images, coco.json, Annotations, labels, data.yaml.
        boxes: (x, y, width, height, index into NAMES) of each image, in whole pixels.
    """

    root: Path
    boxes: list[list[tuple[int, int, int, int, int]]]

    @property
    def images(self) -> Path:
        return self.root / "images"

    def change(self, edit: Callable[[dict[str, Any]], None]) -> None:
        """Edit coco.json."""
        path = self.root / "coco.json"
        given = json.loads(path.read_text())
        edit(given)
        path.write_text(json.dumps(given))


def side(index: int) -> tuple[int, int]:
    return 40 + 3 * index, 64 - 2 * index


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    random = np.random.default_rng(5)
    root = tmp_path / "data"
    for folder in ("images", "Annotations", "labels"):
        (root / folder).mkdir(parents=True)
    (root / "data.yaml").write_text(f"names: {dict(enumerate(NAMES))}\n")
    made: list[list[tuple[int, int, int, int, int]]] = []
    images, annotations = [], []
    for index in range(COUNT):
        width, height = side(index)
        (root / "images" / f"{index}.jpg").write_bytes(picture(index, width, height))
        boxes = []
        for _ in range(index % 3):
            x, y = random.integers(0, 20, 2).tolist()
            w, h = random.integers(5, 19, 2).tolist()
            boxes.append((x, y, w, h, int(random.integers(3))))
        made.append(boxes)
        images.append(
            {"id": 50 - index, "file_name": f"{index}.jpg", "width": width, "height": height}
        )
        for x, y, w, h, number in boxes:
            outline = [x, y, x + w, y, x + w, y + h / 2 + 0.25, x + w / 3, y + h]
            annotations.append(
                {
                    "id": len(annotations),
                    "image_id": 50 - index,
                    "category_id": IDS[number],
                    "bbox": [x, y, w, h],
                    "area": w * h,
                    "iscrowd": 0,
                    "segmentation": [outline],
                }
            )
        voc(root / "Annotations" / f"{index}.xml", boxes, (width, height))
        lines = [
            f"{number} {(x + w / 2) / width} {(y + h / 2) / height} {w / width} {h / height}"
            for x, y, w, h, number in boxes
        ]
        if lines:  # images without objects need no file
            (root / "labels" / f"{index}.txt").write_text("\n".join(lines) + "\n")
    categories = [{"id": number, "name": name} for number, name in zip(IDS, NAMES)]
    given = {"images": images, "annotations": annotations, "categories": categories}
    (root / "coco.json").write_text(json.dumps(given))
    return Scene(root, made)


def voc(path: Path, boxes: list[tuple[int, int, int, int, int]], size: tuple[int, int]) -> None:
    root = ElementTree.Element("annotation")
    ElementTree.SubElement(root, "filename").text = f"{path.stem}.jpg"
    sizes = ElementTree.SubElement(root, "size")
    for name, value in zip(("width", "height"), size):
        ElementTree.SubElement(sizes, name).text = str(value)
    for at, (x, y, w, h, number) in enumerate(boxes):
        one = ElementTree.SubElement(root, "object")
        ElementTree.SubElement(one, "name").text = NAMES[number]
        ElementTree.SubElement(one, "difficult").text = str(at % 2)
        corners = ElementTree.SubElement(one, "bndbox")
        for name, value in zip(("xmin", "ymin", "xmax", "ymax"), (x, y, x + w, y + h)):
            ElementTree.SubElement(corners, name).text = str(value)
    ElementTree.ElementTree(root).write(path)


def fields(store: Store, name: str) -> list[Any]:
    if store.fields[name].kind == "array":
        return store.column(name).tolist()
    return [store.fields[name].decode(one) for one in store.values(name, np.arange(len(store)))]


def corners(scene: Scene, index: int) -> list[list[float]]:
    return [[x, y, x + w, y + h] for x, y, w, h, _ in scene.boxes[index]]


def classes_of(scene: Scene, index: int) -> list[str]:
    return [NAMES[number] for *_, number in scene.boxes[index]]


def check(scene: Scene, store: Store) -> None:
    """Boxes and classes are those of the scene."""
    assert len(store) == COUNT and store.labels is None
    keys = store.keys(np.arange(COUNT))
    for at, (boxes, classes) in enumerate(
        zip(fields(store, "boxes"), fields(store, "labels"), strict=True)
    ):
        index = int(Path(keys[at]).stem)
        assert np.allclose(np.reshape(boxes, (-1, 4)), np.reshape(corners(scene, index), (-1, 4)))
        assert [store.classes[number] for number in classes] == classes_of(scene, index)


ANNOTATIONS = {"coco": "coco.json", "voc": "Annotations", "yolo": "labels"}


@pytest.mark.parametrize("form", ["voc", "yolo"])
def test_annotations_are_found_behind_links_as_images_are(
    scene: Scene, tmp_path: Path, form: str
) -> None:
    for name in ("images", ANNOTATIONS[form]):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train").symlink_to(scene.root / name)
    (tmp_path / "data.yaml").write_bytes((scene.root / "data.yaml").read_bytes())
    folder = tmp_path / ANNOTATIONS[form]
    pack(tmp_path / "images", tmp_path / "a.lmdb", annotations=folder)
    check(scene, open_store(tmp_path / "a.lmdb"))


@pytest.mark.parametrize("name", ANNOTATIONS.values(), ids=ANNOTATIONS.keys())
def test_the_same_boxes_come_out_of_every_format(scene: Scene, tmp_path: Path, name: str) -> None:
    report = pack(scene.images, tmp_path / "a.lmdb", annotations=scene.root / name)
    assert report.joint == {"boxes": "xyxy", "labels": "labels"}
    check(scene, open_store(tmp_path / "a.lmdb"))
    report = pack(scene.images, tmp_path / "b.tar", annotations=scene.root / name, shards=2)
    check(scene, open_store(tmp_path / "b.tar"))
    parts = pack(
        scene.images, tmp_path / "c.lmdb", annotations=scene.root / name, split="val=0.5"
    ).parts
    assert sum(part.records for part in parts) == COUNT


@pytest.mark.parametrize("name", ANNOTATIONS.values(), ids=ANNOTATIONS.keys())
def test_boxes_move_with_their_images_as_in_torchvision(
    scene: Scene, tmp_path: Path, name: str
) -> None:
    pack(scene.images, tmp_path / "a.lmdb", annotations=scene.root / name)
    chain = v2.Compose([
        v2.CenterCrop(24), v2.RandomHorizontalFlip(1.0), v2.SanitizeBoundingBoxes(), v2.ToImage(),
    ])  # fmt: skip
    dataset = PackedDataset(tmp_path / "a.lmdb", joint=True, transform=chain)
    (batch,) = FastLoader(dataset, COUNT)
    for at, key in enumerate(dataset.store.keys(np.arange(COUNT))):
        index = int(Path(key).stem)
        width, height = side(index)
        boxes = torch.tensor(corners(scene, index), dtype=torch.float32).reshape(-1, 4)
        given = {
            "image": Image.open(scene.images / key),
            "boxes": tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=(height, width)),  # type: ignore[call-overload]
            "labels": torch.tensor(
                [dataset.classes.index(one) for one in classes_of(scene, index)], dtype=torch.int64
            ),
        }
        wanted = chain(given)
        assert torch.equal(batch["image"][at], wanted["image"].as_subclass(torch.Tensor))
        torch.testing.assert_close(batch["boxes"][at], wanted["boxes"].as_subclass(torch.Tensor))
        assert batch["labels"][at].tolist() == wanted["labels"].tolist()


def test_pack_and_info_tell_the_classes_of_objects(scene: Scene, tmp_path: Path) -> None:
    words = ["pack", str(scene.images), str(tmp_path / "a.lmdb"), "--annotations"]
    done = CliRunner().invoke(main, [*words, str(scene.root / "coco.json")])
    assert f"a.lmdb: {COUNT} records, 3 classes of objects, " in done.stdout
    told = CliRunner().invoke(main, ["info", str(tmp_path / "a.lmdb")]).stdout
    assert f"a.lmdb: {COUNT} records, 3 classes of objects\n" in told
    assert [line.strip() for line in told.splitlines()[-4:]] == ["classes     3", *BY_ID]
    assert info(tmp_path / "a.lmdb").classes == tuple((name, None) for name in BY_ID)


# --- COCO -----------------------------------------------------------------------------------------


def test_coco_is_what_torchvision_reads(scene: Scene, tmp_path: Path) -> None:
    pytest.importorskip("pycocotools", reason="pycocotools is not installed")
    theirs = datasets.CocoDetection(str(scene.images), str(scene.root / "coco.json"))
    pack(scene.images, tmp_path / "a.lmdb", annotations=scene.root / "coco.json")
    ours = PackedDataset(tmp_path / "a.lmdb", fields="all")
    ids = ours.store.metadata["category_ids"]
    assert len(theirs) == len(ours) and ids == sorted(IDS) and ours.classes == BY_ID
    for at in range(COUNT):  # in the same order
        image, objects = theirs[at]
        mine = ours[at]
        assert np.array_equal(mine["image"].permute(1, 2, 0), np.asarray(image))
        assert [[x, y, x2 - x, y2 - y] for x, y, x2, y2 in mine["boxes"]] == [
            one["bbox"] for one in objects
        ]
        assert [ids[number] for number in mine["labels"]] == [one["category_id"] for one in objects]
        for name in ("iscrowd", "area"):
            assert mine[name] == [one[name] for one in objects]
        assert all(one["image_id"] == mine["image_id"] for one in objects)


def test_masks_of_coco_are_those_of_pycocotools(scene: Scene, tmp_path: Path) -> None:
    coco = pytest.importorskip("pycocotools.mask", reason="pycocotools is not installed")

    def mixed(given: dict[str, Any]) -> None:  # polygons, plain and compressed run lengths
        sizes = {one["id"]: (one["height"], one["width"]) for one in given["images"]}
        for at, one in enumerate(given["annotations"]):
            height, width = sizes[one["image_id"]]
            runs = coco.merge(coco.frPyObjects(one["segmentation"], height, width))
            runs["counts"] = runs["counts"].decode()
            if at % 3 == 1:
                one["segmentation"] = runs
            elif at % 3 == 2:
                counts = _annotations._run_lengths(runs["counts"].encode())
                one["segmentation"] = {"size": [height, width], "counts": counts}

    scene.change(mixed)
    path = scene.root / "coco.json"
    given = json.loads(path.read_text())
    report = pack(scene.images, tmp_path / "a.lmdb", annotations=path, masks=path)
    assert report.joint["mask"] == "mask"
    store = open_store(tmp_path / "a.lmdb")
    overlaps = 0
    for mask, number, classes in zip(
        fields(store, "mask"), fields(store, "image_id"), fields(store, "labels"), strict=True
    ):
        levels = np.asarray(Image.open(io.BytesIO(mask)))
        height, width = levels.shape
        # as torchvision's reference for segmentation merges them
        shapes = [one["segmentation"] for one in given["annotations"] if one["image_id"] == number]
        inside = [decoded(coco, shape, height, width) for shape in shapes]
        wanted = np.zeros_like(levels)
        for one, index in zip(inside, classes, strict=True):
            wanted[one] = np.maximum(wanted[one], index + 1)
        wanted[np.sum(inside, axis=0) > 1] = 255
        overlaps += int((wanted == 255).sum())
        assert np.array_equal(levels, wanted)
    assert overlaps > 0
    pack(scene.images, tmp_path / "b.lmdb", masks=path)
    assert list(open_store(tmp_path / "b.lmdb").fields) == ["mask"]


def decoded(coco: Any, shape: Any, height: int, width: int) -> np.ndarray:
    """A shape by pycocotools, but for the last step, which NumPy warns about."""
    if isinstance(shape, list):
        shape = coco.merge(coco.frPyObjects(shape, height, width))
    elif isinstance(shape["counts"], list):
        shape = coco.frPyObjects(shape, height, width)
    counts = shape["counts"]
    runs = _annotations._run_lengths(counts if isinstance(counts, bytes) else counts.encode())
    drawn = np.repeat(np.arange(len(runs)) % 2 == 1, runs).reshape(width, height).T
    assert int(coco.area(shape)) == int(drawn.sum())
    return drawn


def test_run_lengths_are_read_without_pycocotools(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    width, height = side(1)

    def runs(given: dict[str, Any]) -> None:
        (one,) = (one for one in given["annotations"] if one["image_id"] == 49)
        given["annotations"] = [one]
        counts = [5, 3, width * height - 8]
        one["segmentation"] = {"size": [height, width], "counts": counts}

    scene.change(runs)
    monkeypatch.setitem(sys.modules, "pycocotools", None)
    path = scene.root / "coco.json"
    pack(scene.images, tmp_path / "a.lmdb", masks=path)
    store = open_store(tmp_path / "a.lmdb")
    at = store.keys(np.arange(COUNT)).index("1.jpg")
    levels = np.asarray(Image.open(io.BytesIO(fields(store, "mask")[at])))
    assert np.flatnonzero(levels.T.reshape(-1)).tolist() == [5, 6, 7]


def test_names_with_the_folders_above_are_found(scene: Scene, tmp_path: Path) -> None:
    def deeper(given: dict[str, Any]) -> None:
        for one in given["images"]:
            one["file_name"] = f"/data/train/{one['file_name']}"

    scene.change(deeper)
    pack(scene.images, tmp_path / "a.lmdb", annotations=scene.root / "coco.json")
    check(scene, open_store(tmp_path / "a.lmdb"))


def test_boxes_of_one_folder_are_not_taken_for_images_of_another(
    scene: Scene, tmp_path: Path
) -> None:
    for folder in ("cam1", "cam2"):
        shutil.copytree(scene.images, scene.root / folder)

    def of_two_folders(given: dict[str, Any]) -> None:
        for at, one in enumerate(given["images"]):
            one["file_name"] = f"set/cam{1 + at % 2}/{one['file_name']}"

    scene.change(of_two_folders)
    path = scene.root / "coco.json"
    with pytest.raises(
        StoreError, match=r"such as 'cam1/6\.jpg', found none of 7: give the folder"
    ):
        pack(scene.root / "cam1", tmp_path / "a.lmdb", annotations=path)
    report = pack(scene.root, tmp_path / "b.lmdb", annotations=path)
    assert report.records == COUNT  # "set" is above it


def test_copies_and_appends_keep_the_ids_of_the_categories(scene: Scene, tmp_path: Path) -> None:
    path = scene.root / "coco.json"
    for folder in ("more", "other"):
        shutil.copytree(scene.images, scene.root / folder)
        for image in (scene.root / folder).iterdir():
            image.rename(image.with_name(f"{folder}{image.name}"))
    pack(scene.images, tmp_path / "a.lmdb", annotations=path)
    given = json.loads(path.read_text())

    def renamed(folder: str, ids: dict[int, int]) -> Path:
        changed = json.loads(json.dumps(given))
        for one in changed["images"]:
            one["file_name"] = f"{folder}{one['file_name']}"
        for one in changed["categories"]:
            one["id"] = ids.get(one["id"], one["id"])
        for one in changed["annotations"]:
            one["category_id"] = ids.get(one["category_id"], one["category_id"])
        made = scene.root / f"{folder}.json"
        made.write_text(json.dumps(changed))
        return made

    append(tmp_path / "a.lmdb", scene.root / "more", annotations=renamed("more", {}))
    pack(tmp_path / "a.lmdb", tmp_path / "b.tar")
    for name in ("a.lmdb", "b.tar"):
        assert open_store(tmp_path / name).metadata["category_ids"] == sorted(IDS)
    # others: neither are those of all records
    append(tmp_path / "a.lmdb", scene.root / "other", annotations=renamed("other", {90: 91}))
    assert "category_ids" not in open_store(tmp_path / "a.lmdb").metadata


def annotation(given: dict[str, Any], **changes: object) -> None:
    given["annotations"][0] |= changes


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda given: annotation(given, category_id=8), r"category_id 8 is none of .*\(3, 7, 90"),
        (lambda given: annotation(given, bbox=[1, 2, 3]), r"annotation 0 of .*expected a bbox"),
        (lambda given: annotation(given, bbox=[5, 5, -2, 3]), "no corners in this order"),
        (lambda given: annotation(given, bbox=[30, 5, 20, 3]), "lies outside the image of 43x62"),
        (lambda given: given["images"][1].update(width=99), "an image of 99x62 pixels, and this"),
        (lambda given: given["images"][1].update(file_name="no.jpg"), r"'no\.jpg'.*not there"),
        (lambda given: given["images"][1].update(file_name="../coco.json"), "which is not there"),
        (lambda given: annotation(given, category_id=[3]), r"category_id \[3\] is none of"),
        (lambda given: annotation(given, area="x"), "expected a bbox"),
    ],
)
def test_what_is_wrong_with_an_image_of_coco_is_named_or_skipped(
    scene: Scene, tmp_path: Path, edit: Callable[[dict[str, Any]], None], message: str
) -> None:
    scene.change(edit)
    path = scene.root / "coco.json"
    with pytest.raises((StoreError, DecodeError), match=message):
        pack(scene.images, tmp_path / "a.lmdb", annotations=path)
    assert not (tmp_path / "a.lmdb").exists()
    report = pack(scene.images, tmp_path / "b.lmdb", annotations=path, on_error="skip")
    assert report.records == COUNT - 1 and len(report.skipped) == 1


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda given: given.pop("images"), "expected COCO's JSON.*KeyError: 'images'"),
        (lambda given: annotation(given, image_id=4), r"annotation 0: expected the image_id .* 4"),
        (lambda given: given["images"][1].update(id=50), "an id of its own"),
        (lambda given: given["images"].append([]), "expected COCO's JSON.*TypeError"),
        (lambda given: given["annotations"].insert(0, None), "annotation 0: expected the image_id"),
    ],
)
def test_a_file_that_is_no_coco_says_what_it_lacks(
    scene: Scene, tmp_path: Path, edit: Callable[[dict[str, Any]], None], message: str
) -> None:
    scene.change(edit)
    with pytest.raises(StoreError, match=message):
        pack(scene.images, tmp_path / "a.lmdb", annotations=scene.root / "coco.json")


def test_bad_json_and_other_folders_are_named(scene: Scene, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"expected the annotated images in .*none of 7"):
        pack(scene.root / "labels", tmp_path / "a.lmdb", annotations=scene.root / "coco.json")
    (scene.root / "coco.json").write_text("{")
    with pytest.raises(StoreError, match=r"coco\.json': expected COCO's JSON"):
        pack(scene.images, tmp_path / "a.lmdb", annotations=scene.root / "coco.json")
    with pytest.raises(StoreNotFoundError, match=r"found nothing: did you mean .*/labels'\?"):
        pack(scene.images, tmp_path / "a.lmdb", annotations=scene.root / "label")


@pytest.mark.parametrize(
    "shape",
    [[[1, 2, 3, 4]], [[1, 2, 3, 4, 5]], [[1, 2, 3, 4, 1e9, 6]], {"size": [1, 1], "counts": [1]},
     {"size": [62, 43], "counts": [5, -5, 2666]}, [["x"]], 7],
)  # fmt: skip
def test_a_shape_that_cannot_be_drawn_is_named(scene: Scene, tmp_path: Path, shape: Any) -> None:
    pytest.importorskip("pycocotools", reason="pycocotools is not installed")
    scene.change(lambda given: annotation(given, segmentation=shape))
    path = scene.root / "coco.json"
    with pytest.raises(DecodeError, match=r"annotation 0 of .*its shape cannot be drawn"):
        pack(scene.images, tmp_path / "a.lmdb", annotations=path, masks=path)


def test_drawing_masks_says_what_it_needs(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pycocotools", None)
    path = scene.root / "coco.json"
    pack(scene.images, tmp_path / "a.lmdb", annotations=path)  # boxes need nothing
    with pytest.raises(MissingDependencyError, match=r"pycocotools: pip install .*\[coco\]"):
        pack(scene.images, tmp_path / "b.lmdb", annotations=path, masks=path)
    with pytest.raises(UsageError, match="boxes only: give a folder of masks"):
        pack(scene.images, tmp_path / "b.lmdb", masks=scene.root / "Annotations")


def test_more_images_need_the_same_categories(scene: Scene, tmp_path: Path) -> None:
    path = scene.root / "coco.json"
    pack(scene.images, tmp_path / "a.lmdb", annotations=path)
    shutil.copytree(scene.images, scene.root / "more")
    for image in (scene.root / "more").iterdir():
        image.rename(image.with_name(f"new{image.name}"))

    def renamed(given: dict[str, Any]) -> None:
        for one in given["images"]:
            one["file_name"] = f"new{one['file_name']}"

    scene.change(renamed)
    assert append(tmp_path / "a.lmdb", scene.root / "more", annotations=path).records == 2 * COUNT
    assert open_store(tmp_path / "a.lmdb").joint["boxes"] == "xyxy"
    scene.change(lambda given: given["categories"].append({"id": 1, "name": "ant"}))
    with pytest.raises(UsageError, match="expected images of its classes"):
        append(tmp_path / "a.lmdb", scene.root / "more", annotations=path)


# --- VOC ------------------------------------------------------------------------------------------


def test_voc_is_what_torchvision_reads(scene: Scene, tmp_path: Path) -> None:
    root = tmp_path / "VOCdevkit" / "VOC2012"
    shutil.copytree(scene.images, root / "JPEGImages")
    shutil.copytree(scene.root / "Annotations", root / "Annotations")
    lists = root / "ImageSets" / "Main"
    lists.mkdir(parents=True)
    (lists / "train.txt").write_text("5\n2\n4\n")
    theirs = datasets.VOCDetection(str(tmp_path), year="2012", image_set="train")
    pack(root / "JPEGImages", tmp_path / "a.lmdb", annotations=lists / "train.txt")
    ours = PackedDataset(tmp_path / "a.lmdb", fields="all")
    assert len(theirs) == len(ours) == 3
    found = [name for boxes in scene.boxes for *_, name in boxes]
    assert ours.classes == sorted({NAMES[number] for number in found})  # those of all parts
    for at in range(3):
        image, tree = theirs[at]
        objects = tree["annotation"].get("object", [])
        mine = ours[at]
        assert np.array_equal(mine["image"].permute(1, 2, 0), np.asarray(image))
        assert mine["boxes"] == [
            [float(one["bndbox"][name]) for name in ("xmin", "ymin", "xmax", "ymax")]
            for one in objects
        ]
        assert [ours.classes[number] for number in mine["labels"]] == [
            one["name"] for one in objects
        ]
        assert mine["difficult"] == [int(one["difficult"]) for one in objects]
    with pytest.raises(StoreError, match=r"expected 9\.xml in the folder of annotations"):
        (lists / "train.txt").write_text("9\n")
        pack(root / "JPEGImages", tmp_path / "b.lmdb", annotations=lists / "train.txt")


def test_images_without_an_annotation_are_left_out_and_said(scene: Scene, tmp_path: Path) -> None:
    (scene.root / "Annotations" / "3.xml").unlink()
    report = pack(scene.images, tmp_path / "a.lmdb", annotations=scene.root / "Annotations")
    (one,) = report.left_out
    assert report.records == COUNT - 1
    assert one.example.endswith("images/3.jpg") and "has no .xml for it" in one.reason
    scene.change(lambda given: given["images"].pop())
    report = pack(scene.images, tmp_path / "b.lmdb", annotations=scene.root / "coco.json")
    assert report.records == COUNT - 1 and "does not list it" in report.left_out[0].reason


def test_bad_xml_is_named(scene: Scene, tmp_path: Path) -> None:
    path = scene.root / "Annotations" / "1.xml"
    path.write_text(path.read_text().replace("<xmin>", "<xmin>x"))
    with pytest.raises(StoreError, match=r"object 0 of '.*1\.xml': expected a bndbox of numbers"):
        pack(scene.images, tmp_path / "a.lmdb", annotations=scene.root / "Annotations")
    path.write_text("<annotation>")
    with pytest.raises(StoreError, match=r"1\.xml': expected XML, found something else"):
        pack(scene.images, tmp_path / "a.lmdb", annotations=scene.root / "Annotations")


def test_the_filename_in_voc_chooses_between_images_of_one_name(
    scene: Scene, tmp_path: Path
) -> None:
    Image.new("RGB", side(1)).save(scene.images / "1.png")
    path = scene.root / "Annotations"
    pack(scene.images, tmp_path / "a.lmdb", annotations=path)
    assert "1.jpg" in open_store(tmp_path / "a.lmdb").keys(np.arange(COUNT))
    file = path / "1.xml"
    file.write_text(file.read_text().replace("1.jpg", "01.jpg"))
    with pytest.raises(StoreError, match=r"1\.xml' may be about '1\.jpg' or '1\.png', .*'01\.jpg'"):
        pack(scene.images, tmp_path / "b.lmdb", annotations=path)
    report = pack(scene.images, tmp_path / "b.lmdb", annotations=path, on_error="skip")
    assert report.records == COUNT - 1


# --- YOLO -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", ["data.yaml", "dict.yml", "classes.txt", None])
def test_the_class_names_of_yolo_are_found_where_they_are(
    scene: Scene, tmp_path: Path, names: str | None
) -> None:
    (scene.root / "data.yaml").unlink()
    if names == "data.yaml":
        (scene.root / "broken.yaml").write_text("{")  # has no names, and is not read
        (scene.root / names).write_text("nc: 3\nnames: [cat, dog, owl]\n")
    elif names == "dict.yml":
        (scene.root / names).write_text("names:\n  0: cat\n  1: dog\n  2: owl\n")
    elif names is not None:
        (scene.root / "labels" / names).write_text("cat\ndog\nowl\n")
    pack(scene.images, tmp_path / "a.lmdb", annotations=scene.root / "labels")
    store = open_store(tmp_path / "a.lmdb")
    assert list(store.classes) == ([] if names is None else NAMES)


def test_bad_class_names_of_yolo_are_named(scene: Scene, tmp_path: Path) -> None:
    for text in ("names: 3\n", "names: {1: cat}\n", "names: [\n"):
        (scene.root / "data.yaml").write_text(text)
        with pytest.raises(StoreError, match=r"data\.yaml': expected names"):
            pack(scene.images, tmp_path / "a.lmdb", annotations=scene.root / "labels")


def test_outlines_of_yolo_become_boxes_and_masks(scene: Scene, tmp_path: Path) -> None:
    pytest.importorskip("pycocotools", reason="pycocotools is not installed")
    for path in (scene.root / "labels").iterdir():
        path.write_text("1 0.25 0.25 0.75 0.25 0.75 0.5 0.25 0.5\n")
    labels = scene.root / "labels"
    pack(scene.images, tmp_path / "a.lmdb", annotations=labels, masks=labels)
    store = open_store(tmp_path / "a.lmdb")
    keys = store.keys(np.arange(COUNT))
    width, height = side(1)
    at = keys.index("1.jpg")
    assert np.allclose(
        fields(store, "boxes")[at],
        [[width / 4, height / 4, 3 * width / 4, height / 2]],
    )
    levels = np.asarray(Image.open(io.BytesIO(fields(store, "mask")[at])))
    assert levels.shape == (height, width) and set(np.unique(levels)) == {0, 2}
    assert abs((levels == 2).mean() - 0.125) < 0.02


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("3 0.5 0.5 0.1 0.1", "class 3 is none of the classes, counted from 0, of 3"),
        ("0 0.5 0.5 0.1", "a class and 4 numbers, or a polygon, found 3"),
        ("0 12 30 4 4", "divide pixels by them"),
        ("cat 0.5 0.5 0.1 0.1", "expected numbers, found 'cat 0.5"),
        ("0 0.1 0.5 0.9 0.1", "lies outside the image"),
    ],
)
def test_a_line_of_yolo_that_is_wrong_is_named_or_skipped(
    scene: Scene, tmp_path: Path, line: str, message: str
) -> None:
    (scene.root / "labels" / "0.txt").write_text(f"0 0.5 0.5 0.1 0.1\n{line}\n")
    with pytest.raises((StoreError, DecodeError), match=rf"line 2 of '.*0\.txt': .*{message}"):
        pack(scene.images, tmp_path / "a.lmdb", annotations=scene.root / "labels")
    report = pack(
        scene.images, tmp_path / "b.lmdb", annotations=scene.root / "labels", on_error="skip"
    )
    assert report.records == COUNT - 1


def test_an_empty_line_among_class_names_is_named(scene: Scene, tmp_path: Path) -> None:
    path = scene.root / "labels" / "classes.txt"
    path.write_text("cat\n\ndog\nowl\n")
    with pytest.raises(StoreError, match=r"classes\.txt': line 2 is empty"):
        pack(scene.images, tmp_path / "a.lmdb", annotations=scene.root / "labels")
    path.write_text("cat\ndog\nowl\n\n")
    pack(scene.images, tmp_path / "a.lmdb", annotations=scene.root / "labels")
    assert list(open_store(tmp_path / "a.lmdb").classes) == NAMES


def test_keypoints_are_no_outlines(scene: Scene, tmp_path: Path) -> None:
    (scene.root / "data.yaml").write_text(f"kpt_shape: [2, 2]\nnames: {NAMES}\n")
    with pytest.raises(StoreError, match=r"data\.yaml': it has kpt_shape: .* are not read"):
        pack(scene.images, tmp_path / "a.lmdb", annotations=scene.root / "labels")


@pytest.mark.parametrize("number", [254, 300])
def test_a_class_without_a_value_in_the_mask_is_named(
    scene: Scene, tmp_path: Path, number: int
) -> None:
    pytest.importorskip("pycocotools", reason="pycocotools is not installed")
    (scene.root / "data.yaml").unlink()
    labels = scene.root / "labels"
    (labels / "0.txt").write_text("253 0.1 0.1 0.9 0.1 0.9 0.9\n")
    (labels / "1.txt").write_text(f"{number} 0.1 0.1 0.9 0.1 0.9 0.9\n")
    with pytest.raises(DecodeError, match=rf"line 1 of '.*1\.txt': class {number} has no value"):
        pack(scene.images, tmp_path / "a.lmdb", annotations=labels, masks=labels)
    others = shutil.copytree(labels, tmp_path / "others")
    with pytest.raises(UsageError, match=r"expected a folder of masks, or '.*labels' itself, got"):
        pack(scene.images, tmp_path / "a.lmdb", annotations=labels, masks=others)
    (labels / "classes.txt").write_text("\n".join(map(str, range(number + 1))))
    pack(scene.images, tmp_path / "a.lmdb", annotations=labels, masks=labels)
    store = open_store(tmp_path / "a.lmdb")
    levels = np.asarray(Image.open(io.BytesIO(fields(store, "mask")[1])))
    assert set(np.unique(levels)) == {0, number + 1}
