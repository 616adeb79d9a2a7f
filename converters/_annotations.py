"""Boxes, classes and masks from annotations: COCO's JSON, VOC's XML, YOLO's text.

Sources: cocodataset.org ("Data format": boxes are x, y, width, height; segmentations are polygons
or run lengths), the VOC2012 development kit ("Annotations": corners, counted from 1, which stay as
they are, as in torchvision), and docs.ultralytics.com ("Detect", "Segment": a line is the class and
the box's centre, width and height, or a polygon, in parts of the image's sides).
"""

from __future__ import annotations

import dataclasses
import io
import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import numpy as np

from ..errors import DecodeError, StoreError, StoreNotFoundError, UsageError, install, needed
from ..storage._fields import encode_json
from ..storage._nearby import nothing_at
from ..storage.folder import FolderStore, images_below, walk
from ._beside import MASK, Beside, Column, add_masks, matched, stem_of
from ._gather import Files
from ._labels import Chosen
from ._list_source import add_unlisted
from ._store_source import FolderSource

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

_OUTSIDE = 1.0  # pixels by which a box may leave its image: annotators round
_NAMES = ("classes.txt", "obj.names", "predefined_classes.txt")  # of YOLO's classes
_YAML_NAMES = re.compile(rb"^names\s*:", re.MULTILINE)


class _Wrong(Exception):
    """What is wrong with one object."""


@dataclasses.dataclass
class _Objects:
    """What is annotated in one image. All lists have an item for each object.

    Boxes are x0, y0, x1, y1; shapes are polygons, run lengths, or None for a box only. Both are in
    pixels, or in parts of the image's sides.
    """

    what: str  # what messages call an object
    where: str  # the file that has them
    size: tuple[int, int] | None = None  # width and height, if the annotation says them
    places: list[int] = dataclasses.field(default_factory=list)  # its number in its file
    boxes: list[Sequence[float]] = dataclasses.field(default_factory=list)
    classes: list[int] = dataclasses.field(default_factory=list)
    shapes: list[Any] = dataclasses.field(default_factory=list)
    more: dict[str, list[Any]] = dataclasses.field(default_factory=dict)  # by name

    def place(self, number: int) -> str:
        """What messages call object ``number``."""
        return f"{self.what} {number} of {self.where!r}"

    def add(
        self, place: int, number: int, box: Sequence[float], shape: Any = None, **more: object
    ) -> None:
        """Add one object; raises _Wrong."""
        if not all(map(math.isfinite, box)) or box[2] < box[0] or box[3] < box[1]:
            raise _Wrong(f"the box {list(box)} has no corners in this order (x0, y0, x1, y1)")
        self.places.append(place)
        self.classes.append(number)
        self.boxes.append(box)
        self.shapes.append(shape)
        for name, value in more.items():
            self.more.setdefault(name, []).append(value)

    def check_size(self, size: tuple[int, int]) -> None:
        """Raise DecodeError if an image of ``size`` is another one than was annotated."""
        if self.size not in (None, size):
            raise DecodeError(
                f"{self.where!r} is about an image of {self.size[0]}x{self.size[1]} pixels, and "
                f"this one has {size[0]}x{size[1]}: give the images that were annotated"
            )


@dataclasses.dataclass
class _Annotated:
    """The images that have annotations, in order."""

    names: list[str]  # paths below the folder of images
    objects: list[_Objects]  # of each image
    classes: list[str]
    beside: Beside  # what is wrong, left out and noted
    unlisted: str = ""  # why an image that is none of ``names`` is left out
    relative: bool = False  # whether boxes and shapes are parts of the image's sides
    ids: Sequence[int] = ()  # COCO's numbers of the images


def is_annotations(path: str) -> bool:
    """Whether ``path`` holds annotations rather than masks."""
    if not os.path.isdir(path):
        return os.path.isfile(path)
    return not images_below(path) and bool(_below(path, ".txt") or _below(path, ".xml"))


def annotated(folder: str, chosen: Chosen) -> FolderSource:
    """The images in ``folder`` that are annotated, with boxes, classes and masks as fields."""
    chosen.refuse(repr(folder), "masks", "annotations")
    path = chosen.annotations or chosen.masks
    assert path is not None  # the caller looked
    images = _read(folder, path)
    beside, objects = images.beside, images.objects
    beside.classes = images.classes
    if chosen.annotations is not None:
        beside.make("boxes", _Boxes(objects, images.relative))
        beside.add("labels", [one.classes for one in objects], "labels")  # as torchvision's
        for name in dict.fromkeys(name for one in objects for name in one.more):
            beside.add(name, [one.more.get(name, []) for one in objects])
        if images.ids:
            beside.add("image_id", images.ids)
    if chosen.masks == path or (chosen.masks is not None and is_annotations(chosen.masks)):
        if chosen.masks != path:
            raise UsageError(
                f"masks: expected a folder of masks, or {path!r} itself, got {chosen.masks!r}"
            )
        beside.make(MASK, _Drawn(objects, images.relative, len(images.classes)))
    else:
        for one in objects:
            one.shapes = [None] * len(one.boxes)  # polygons take the most memory
        if chosen.masks is not None:
            add_masks(beside, images.names, chosen.masks)
    files = [os.path.join(folder, name) for name in images.names]
    if images.unlisted:
        add_unlisted(beside, folder, files, images.unlisted)
    store = FolderStore.from_samples([(file, 0) for file in files], [], root=folder)
    return FolderSource(store, beside, images.names)


class _Boxes(Column):
    """x0, y0, x1, y1 in pixels, as JSON, compared with the image's size."""

    joint = "xyxy"

    def __init__(self, objects: Sequence[_Objects], relative: bool) -> None:
        self._objects, self._relative = objects, relative

    def value(self, index: int, data: bytes | None, size: tuple[int, int]) -> bytes:
        objects = self._objects[index]
        objects.check_size(size)
        sides = (*size, *size)
        boxes = objects.boxes
        if self._relative:
            boxes = [[value * side for value, side in zip(box, sides)] for box in boxes]
        for box, number in zip(boxes, objects.places):
            outside = max(-box[0], -box[1], box[2] - size[0], box[3] - size[1])
            if outside > _OUTSIDE:
                shown = ", ".join(f"{value:g}" for value in box)
                raise DecodeError(
                    f"{objects.place(number)}: the box ({shown}) lies outside the image of "
                    f"{size[0]}x{size[1]} pixels: correct it"
                )
        return encode_json(boxes)


class _Drawn(Column):
    """A mask (PNG) of the objects' shapes; pycocotools draws polygons.

    As in torchvision's reference for segmentation: 0 where there is no object, else 1 + its class,
    and 255 where objects overlap. With more than 253 classes it has 16 bits, and 65535 is 255's.
    """

    kind = "bytes"
    joint = "mask"

    def __init__(self, objects: Sequence[_Objects], relative: bool, classes: int) -> None:
        kinds = {type(shape) for of_image in objects for shape in of_image.shapes}
        if kinds <= {type(None)}:
            raise UsageError(
                "masks: expected polygons or run lengths in the annotations, found boxes only: "
                "give a folder of masks"
            )
        if list in kinds:  # a missing one is told before any image is read
            needed("pycocotools", f"drawing polygons needs pycocotools: {install('coco')}")
        self._objects, self._relative = objects, relative
        self._type = np.uint8 if classes <= 253 else np.uint16

    def value(self, index: int, data: bytes | None, size: tuple[int, int]) -> bytes:
        from PIL import Image

        objects = self._objects[index]
        objects.check_size(size)
        levels, overlap = np.zeros(size[::-1], self._type), np.iinfo(self._type).max
        count = np.zeros(size[::-1], np.int32)
        for shape, number, place in zip(objects.shapes, objects.classes, objects.places):
            if shape is None:
                continue
            try:
                inside = _drawn(shape, size, relative=self._relative)
            except Exception as error:
                raise DecodeError(
                    f"{objects.place(place)}: its shape cannot be drawn: {error}"
                ) from error
            if number + 1 >= overlap:
                raise DecodeError(
                    f"{objects.place(place)}: class {number} has no value below {overlap}, which "
                    "is for overlaps: write the names of all classes into classes.txt"
                )
            levels[inside] = number + 1
            count += inside
        levels[count > 1] = overlap
        buffer = io.BytesIO()
        Image.fromarray(levels).save(buffer, "PNG")
        return buffer.getvalue()


def _drawn(shape: Any, size: tuple[int, int], *, relative: bool) -> np.ndarray:
    """bool (height, width) of polygons, or of run lengths. Raises anything."""
    width, height = size
    if isinstance(shape, list):
        from pycocotools import mask as coco

        polygons = [np.asarray(xy, np.float64) for xy in shape]
        if relative:
            polygons = [xy * np.resize([width, height], len(xy)) for xy in polygons]
        most = 2 * max(width, height)  # memory is taken for every pixel of an outline
        for xy in polygons:
            if xy.ndim != 1 or len(xy) < 6 or len(xy) % 2 or not np.abs(xy).max() <= most:
                raise ValueError("expected polygons of three points or more in the image")
        shape = coco.merge(coco.frPyObjects([xy.tolist() for xy in polygons], height, width))
    counts = shape["counts"]
    if not isinstance(counts, list):
        counts = _run_lengths(counts.encode() if isinstance(counts, str) else counts)
    if list(shape["size"]) != [height, width] or sum(counts) != width * height or min(counts) < 0:
        raise ValueError(f"expected the run lengths of {width}x{height} pixels, found others")
    inside = np.arange(len(counts)) % 2 == 1  # the first run is outside
    drawn: np.ndarray = np.repeat(inside, counts).reshape(width, height).T
    return drawn


def _run_lengths(text: bytes) -> list[int]:
    """COCO's compressed run lengths: five bits a byte, the lowest first; from the third on,
    differences to the one before the last.
    """
    counts: list[int] = []
    value = bits = 0
    for byte in text:
        value |= (byte - 48 & 31) << bits
        bits += 5
        if not byte - 48 & 32:
            value -= (byte - 48 & 16) and 1 << bits
            counts.append(value + (counts[-2] if len(counts) > 2 else 0))
            value = bits = 0
    return counts


def _read(folder: str, path: str) -> _Annotated:
    if os.path.isfile(path) and path.lower().endswith(".json"):
        return _coco(folder, path)
    if os.path.isfile(path) and path.lower().endswith(".txt"):  # one of VOC's ImageSets
        root = os.path.dirname(os.path.dirname(os.path.dirname(path)))
        lines = _contents(path).decode("utf-8", "replace").splitlines()
        return _voc(folder, os.path.join(root, "Annotations"), [line.split() for line in lines])
    if os.path.isdir(path) and _below(path, ".xml"):
        return _voc(folder, path, None)
    if os.path.isdir(path) and _below(path, ".txt"):
        return _yolo(folder, path)
    there = os.path.exists(path)
    raise (StoreError if there else StoreNotFoundError)(
        "expected COCO's .json, a folder with VOC's .xml or YOLO's .txt, or a .txt of VOC's "
        "ImageSets, found " + ("none of them" if there else f"nothing{nothing_at(path)}"),
        path=path,
    )


def _contents(path: str) -> bytes:
    return next(Files().contents([path]))


def _below(folder: str, suffix: str) -> list[str]:
    """The files below ``folder`` with this suffix, as paths below it, sorted."""
    paths = [
        os.path.relpath(os.path.join(root, name), folder).replace(os.sep, "/")
        for root, names in walk(folder)
        for name in names
        if name.lower().endswith(suffix) and name not in _NAMES
    ]
    return sorted(paths)


def _present(images: _Annotated, folder: str, path: str) -> _Annotated:
    """``images``, of which those that are not in ``folder`` are faults."""
    there = [
        not os.path.isabs(name)
        and ".." not in name.split("/")
        and os.path.isfile(os.path.join(folder, name))
        for name in images.names
    ]
    if not any(there):
        raise StoreError(
            f"expected the annotated images in {folder!r}, such as "
            f"{', '.join(map(repr, images.names[:1])) or 'none'}, found none of {len(there):,}: "
            "give the folder that they are in",
            path=path,
        )
    for index in np.flatnonzero(~np.array(there)).tolist():
        where = images.objects[index].where
        images.beside.fault(
            index, f"{where!r} is about {images.names[index]!r}, which is not there"
        )
    return images


# --- COCO -----------------------------------------------------------------------------------------


def _coco(folder: str, path: str) -> _Annotated:
    data = _contents(path)
    try:
        given = json.loads(data)
        images = sorted(given["images"], key=lambda one: one["id"])  # as CocoDetection does
        names = [str(one["file_name"]) for one in images]
        index = {one["id"]: at for at, one in enumerate(images)}
        categories = sorted(given["categories"], key=lambda one: one["id"])
        numbers = {one["id"]: number for number, one in enumerate(categories)}
        classes = [str(one["name"]) for one in categories]
        entries = list(given["annotations"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise StoreError(
            "expected COCO's JSON, with images (id, file_name), annotations (image_id, "
            f"category_id, bbox) and categories (id, name), found {type(error).__name__}: {error}",
            path=path,
        ) from error
    if len(index) != len(images):
        raise StoreError("expected an id of its own for each of the images", path=path)
    if not any(os.path.lexists(os.path.join(folder, name)) for name in names):
        # They may be written with the folders above, which are the same for all. Names without
        # their folders would not do: two folders may have images of one name.
        above = os.path.commonpath([os.path.dirname(f"/{name}") for name in names] or ["/"])
        names = [os.path.relpath(f"/{name}", above) for name in names]
    objects = [
        _Objects("annotation", path, _size_in(one.get("width"), one.get("height")))
        for one in images
    ]
    beside = Beside()
    beside.read(data)
    beside.noted["category_ids"] = list(numbers)
    for number, one in enumerate(entries):
        try:
            at = index[one["image_id"]]
        except (KeyError, TypeError) as error:
            shown = one.get("image_id") if isinstance(one, dict) else one
            raise StoreError(
                f"annotation {number}: expected the image_id of one of the images, found {shown!r}",
                path=path,
            ) from error
        try:
            _add_coco(objects[at], number, one, numbers)
        except _Wrong as wrong:
            beside.fault(at, f"{objects[at].place(number)}: {wrong}")
    annotations = _Annotated(names, objects, classes, beside, f"{path!r} does not list it")
    if all(type(one["id"]) is int for one in images):
        annotations.ids = list(index)
    return _present(annotations, folder, path)


def _add_coco(
    objects: _Objects, place: int, given: Mapping[str, Any], numbers: Mapping[Any, int]
) -> None:
    category, box = given.get("category_id"), given.get("bbox")
    if not isinstance(category, (int, str)) or category not in numbers:
        declared = ", ".join(map(str, list(numbers)[:10])) or "none"
        raise _Wrong(
            f"category_id {category!r} is none of the declared categories ({declared} ...): declare"
            " it, or remove the annotation"
        )
    try:
        x, y, width, height = map(float, box)  # type: ignore[arg-type]
        area = float(given.get("area", width * height))
    except (TypeError, ValueError) as error:
        raise _Wrong(f"expected a bbox of x, y, width, height, found {box!r}") from error
    objects.add(
        place,
        numbers[category],
        (x, y, x + width, y + height),
        given.get("segmentation") or None,
        iscrowd=given.get("iscrowd", 0),
        area=area,
    )


def _size_in(width: object, height: object) -> tuple[int, int] | None:
    """Width and height that an annotation says, if it does."""
    if isinstance(width, int) and isinstance(height, int) and width > 0 and height > 0:
        return width, height
    return None


# --- VOC ------------------------------------------------------------------------------------------


def _voc(folder: str, path: str, lines: Sequence[Sequence[str]] | None) -> _Annotated:
    """The images with an .xml file in ``path``, or those that ``lines`` begin with, in order."""
    files = {stem_of(name): os.path.join(path, name) for name in _below(path, ".xml")}
    stems = list(files) if lines is None else [line[0] for line in lines if line]
    missing = next((stem for stem in stems if stem not in files), None)
    if missing is not None:
        raise StoreError(f"expected {missing}.xml in the folder of annotations, found none",
                         path=path)  # fmt: skip
    beside = Beside()
    trees = {stem: _xml(file, beside) for stem, file in files.items()}
    # of all: so that every part of a dataset counts them alike
    classes = sorted({_text(one, "name") for tree in trees.values() for one in tree.iter("object")})
    objects = []
    for index, stem in enumerate(stems):
        sides = (_text(trees[stem], f"size/{side}") for side in ("width", "height"))
        size = _size_in(*(int(side) if side.isdigit() else None for side in sides))
        of_image = _Objects("object", files[stem], size)
        for number, one in enumerate(trees[stem].iter("object")):
            try:
                _add_voc(of_image, number, one, classes)
            except _Wrong as wrong:
                beside.fault(index, f"{of_image.place(number)}: {wrong}")
        objects.append(of_image)
    images: dict[str, list[str]] = {}
    for name in images_below(folder):
        images.setdefault(stem_of(name), []).append(name)
    names = []
    for index, stem in enumerate(stems):
        some, said = images.get(stem, [f"{stem}.jpg"]), _text(trees[stem], "filename")
        named = [name for name in some if os.path.basename(name) == said]
        if len(some) > 1 and not named:
            beside.fault(
                index,
                f"{files[stem]!r} may be about {' or '.join(map(repr, some))}, and its filename is "
                f"{said!r}: write there which",
            )
        names.append((named or some)[0])
    reason = f"{path!r} has no .xml for it" if lines is None else "the list does not name it"
    return _present(_Annotated(names, objects, classes, beside, reason), folder, path)


def _xml(path: str, beside: Beside) -> Element:
    data = _contents(path)
    beside.read(data)
    try:
        return ElementTree.fromstring(data)
    except ElementTree.ParseError as error:
        raise StoreError(f"expected XML, found something else: {error}", path=path) from error


def _add_voc(objects: _Objects, place: int, given: Element, classes: Sequence[str]) -> None:
    try:
        box = [float(_text(given, f"bndbox/{side}")) for side in ("xmin", "ymin", "xmax", "ymax")]
    except ValueError as error:
        raise _Wrong("expected a bndbox of numbers xmin, ymin, xmax, ymax") from error
    difficult = int(_text(given, "difficult") == "1")
    objects.add(place, classes.index(_text(given, "name")), box, difficult=difficult)


def _text(given: Element, path: str) -> str:
    return (given.findtext(path) or "").strip()


# --- YOLO -----------------------------------------------------------------------------------------


def _yolo(folder: str, path: str) -> _Annotated:
    """All images in ``folder``; those without a .txt file in ``path`` have no objects."""
    names = images_below(folder)
    if not names:
        raise StoreError("expected images, found none", path=folder)
    beside = Beside()
    files = matched(beside, names, path, _below(path, ".txt"), "label file")
    classes = next(_yolo_classes(path), None)
    beside.read(repr(classes).encode("utf-8", "replace"))
    objects = []
    for index, file in enumerate(files):
        of_image = _Objects("line", file)
        data = _contents(file) if file else b""
        beside.read(data)
        for number, line in enumerate(data.decode("utf-8", "replace").splitlines(), 1):
            try:
                if line.strip():
                    _add_yolo(of_image, number, line.split(), classes)
            except _Wrong as wrong:
                beside.fault(index, f"{of_image.place(number)}: {wrong}")
        objects.append(of_image)
    return _Annotated(names, objects, classes or [], beside, relative=True)


def _add_yolo(
    objects: _Objects, place: int, parts: Sequence[str], classes: Sequence[str] | None
) -> None:
    try:
        number, *values = int(parts[0]), *map(float, parts[1:])
    except ValueError as error:
        raise _Wrong(f"expected numbers, found {' '.join(parts)[:60]!r}") from error
    if number < 0 or (classes is not None and number >= len(classes)):
        declared = "" if classes is None else f", of {len(classes)} that are declared"
        raise _Wrong(f"class {number} is none of the classes, counted from 0{declared}")
    if len(values) != 4 and (len(values) < 6 or len(values) % 2):
        raise _Wrong(f"expected a class and 4 numbers, or a polygon, found {len(values)} numbers")
    if not all(0 <= value <= 1 for value in values):
        raise _Wrong(
            "expected parts of the image's width and height, which are 0 to 1: divide pixels by "
            "them"
        )
    if len(values) == 4:
        x, y, width, height = values
        objects.add(place, number, (x - width / 2, y - height / 2, x + width / 2, y + height / 2))
    else:
        xs, ys = values[::2], values[1::2]
        objects.add(place, number, (min(xs), min(ys), max(xs), max(ys)), [values])


def _yolo_classes(path: str) -> Iterator[list[str]]:
    """The class names in classes.txt or a .yaml, in ``path`` or the two folders above it."""
    above = os.path.dirname(path)
    for folder in (path, above, os.path.dirname(above)):
        for name in sorted(os.listdir(folder)):
            file = os.path.join(folder, name)
            if name in _NAMES:
                lines = _contents(file).decode("utf-8", "replace").rstrip().splitlines()
                names = [line.strip() for line in lines]
                if "" in names:
                    raise StoreError(
                        f"line {names.index('') + 1} is empty, and each line names a class: "
                        "write a name there, or remove the line",
                        path=file,
                    )
                yield names
            elif name.endswith((".yaml", ".yml")) and _YAML_NAMES.search(data := _contents(file)):
                yield _yaml_names(data, file)


def _yaml_names(data: bytes, path: str) -> list[str]:
    """The entry ``names``: a list, or a dict of number -> name."""
    yaml = needed(
        "yaml",
        f"reading the class names in {path!r} needs PyYAML: pip install pyyaml, or write them into "
        "classes.txt, one on each line",
    )
    try:
        given = yaml.safe_load(data)
        names = given["names"]
        if isinstance(names, dict):
            names = [names[number] for number in range(len(names))]
        names = list(map(str, names))
    except (yaml.YAMLError, TypeError, KeyError) as error:
        raise StoreError(
            f"expected names: a list, or numbers from 0 with a name each, found {error}", path=path
        ) from error
    if "kpt_shape" in given:
        raise StoreError(
            "it has kpt_shape: its labels have keypoints, which are not read; if these labels are "
            "boxes or outlines, remove the entry, else write their boxes alone, class x y width "
            "height",
            path=path,
        )
    return names
