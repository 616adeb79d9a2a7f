"""Masks, boxes and points are transformed with their images exactly as in torchvision v2."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.transforms import InterpolationMode as Mode
from torchvision.transforms import v2

import joint_oracle
import releases
import torchvision_oracle
from fastload import DataError, FastLoader, PackedDataset, UsageError, open_store, open_writer
from fastload.storage import Record

COUNT = 10
SIZES = [(60, 45), (37, 64), (50, 50), (81, 33), (40, 71)]
JOINT = {"mask": "mask", "boxes": "xyxy", "classes": "labels"}
if releases.HAS_POINTS:
    JOINT["points"] = "points"
TENSOR = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
FIXED = v2.Compose([v2.Resize((30, 40)), v2.PILToTensor()])


def png(array: np.ndarray, mode: str | None = None) -> bytes:
    image = Image.fromarray(array)
    if mode == "P":
        image = image.convert("L")
        image.putpalette([v for level in range(256) for v in (level, 255 - level, 7)])
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def fields_of(i: int) -> dict[str, Any]:
    width, height = SIZES[i % len(SIZES)]
    rng = np.random.default_rng(i)
    count = i % 4
    corners = rng.uniform(0, 1, (count, 2, 2)) * (width, height)
    boxes = np.concatenate([corners.min(axis=1), corners.max(axis=1)], axis=1)
    return {
        "mask": png(rng.integers(0, 256, (height, width), np.uint8), "P" if i % 2 else None),
        "boxes": boxes.tolist(),
        "classes": list(range(10 * i, 10 * i + count)),
        "points": (rng.uniform(0, 1, (3, 2)) * (width, height)).tolist(),
    }


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    made = []
    for i in range(COUNT):
        width, height = SIZES[i % len(SIZES)]
        data = torchvision_oracle.picture(width, height, i)
        buffer = io.BytesIO()
        data.save(buffer, "BMP")
        made.append(
            Record(
                data=buffer.getvalue(),
                label=i,
                key=f"{i}",
                width=width,
                height=height,
                fields=fields_of(i),
            )
        )
    path = tmp_path_factory.mktemp("joint") / "a.lmdb"
    with open_writer(path, classes=[]) as writer:
        writer.append(made)
    return str(path)


def given_of(i: int, joint: dict[str, str]) -> dict[str, Any]:
    """Sample ``i`` as a user of torchvision v2 would have it."""
    width, height = SIZES[i % len(SIZES)]
    given: dict[str, Any] = {"image": torchvision_oracle.picture(width, height, i)}
    for name, value in fields_of(i).items():
        kind = joint.get(name)
        if kind == "mask":
            mask = tv_tensors.Mask(Image.open(io.BytesIO(value)))
            given[name] = tv_tensors.Mask(mask[0])
        elif kind == "points":
            given[name] = tv_tensors.KeyPoints(
                torch.tensor(value, dtype=torch.float32), canvas_size=(height, width)
            )
        elif kind == "labels":
            given["labels"] = torch.tensor(value, dtype=torch.int64)
        elif kind is not None:
            given[name] = tv_tensors.BoundingBoxes(
                torch.tensor(value, dtype=torch.float32).reshape(-1, 4),
                format=kind.upper(),
                canvas_size=(height, width),
            )
    return given


def assert_sample(ours: Any, at: int, theirs: dict[str, Any]) -> None:
    """Sample ``at`` of a batch equals torchvision's."""
    assert torch.equal(ours["image"][at], theirs["image"])
    for name, value in theirs.items():
        if name == "labels":
            assert torch.equal(ours["classes"][at], value)
        elif name == "mask":
            assert ours[name].dtype == value.dtype
            assert torch.equal(ours[name][at], value)
        elif name != "image":
            assert ours[name][at].dtype == value.dtype
            torch.testing.assert_close(ours[name][at], value, rtol=1e-5, atol=1e-4)


CHAINS = {
    "RandomResizedCrop": [v2.RandomResizedCrop((24, 31)), v2.RandomHorizontalFlip(), *TENSOR],
    "Resize and RandomCrop": [v2.Resize(40), v2.RandomCrop((30, 36), fill=9), *TENSOR],
    "padding": [v2.RandomCrop(50, padding=(3, 8, 2, 1), pad_if_needed=True, fill=7), *TENSOR],
    "CenterCrop": [v2.CenterCrop((41, 38)), v2.ToImage()],
    "a large CenterCrop": [v2.CenterCrop((64, 91)), v2.RandomHorizontalFlip(), v2.ToImage()],
    "Pad": [v2.Resize((30, 41)), v2.Pad((1, 2, 3, 4), fill=200), v2.ToImage()],
    "a fill for masks": [
        v2.Resize((30, 41)),
        v2.Pad(3, fill={tv_tensors.Mask: 255, "others": 1}),
        v2.ToImage(),
    ],
    "flips": [v2.RandomHorizontalFlip(), v2.RandomVerticalFlip(), v2.Resize((20, 20)), *TENSOR],
    "several frames": [
        v2.RandomCrop(44, pad_if_needed=True, fill=3),
        v2.RandomResizedCrop(33, interpolation=Mode.BICUBIC),
        v2.ColorJitter(0.4, 0.4, 0.4, 0.1),
        v2.RandomVerticalFlip(),
        v2.Pad(2),
        v2.RandomHorizontalFlip(),
        v2.CenterCrop(31),
        v2.ToImage(),
    ],
    "masks as classes, as torchvision's examples have it": [
        v2.RandomResizedCrop((24, 31)),
        v2.RandomHorizontalFlip(),
        v2.ToImage(),
        v2.ToDtype(
            {tv_tensors.Image: torch.float32, tv_tensors.Mask: torch.int64, "others": None},
            scale=True,
        ),
        v2.ToPureTensor(),
    ],
    "all cast": [
        v2.RandomCrop(44, pad_if_needed=True, fill=3),
        v2.SanitizeBoundingBoxes(),
        v2.ToImage(),
        v2.ToDtype({tv_tensors.Image: torch.float32, "others": torch.float64}),
    ],
    "masks cast with the image": [
        v2.Resize((30, 41)),
        v2.PILToTensor(),
        v2.ConvertImageDtype(torch.float32),
    ],
    "sanitising": [v2.RandomResizedCrop(32, (0.1, 0.4)), v2.SanitizeBoundingBoxes(), *TENSOR],
    "sanitising more": [
        v2.Resize((40, 40)),
        v2.SanitizeBoundingBoxes(min_size=9, min_area=150),
        v2.RandomCrop(25),
        v2.SanitizeBoundingBoxes(),
        v2.RandomHorizontalFlip(),
        v2.ToImage(),
    ],
}


def sanitises(steps: list[Any]) -> bool:
    """Whether torchvision refuses them beside a mask for each image, as 0.24 did."""
    sanitised = any(isinstance(step, v2.SanitizeBoundingBoxes) for step in steps)
    return sanitised and not releases.SANITISES_BESIDE_MASKS


@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.native
def test_samples_are_those_of_torchvision(path: str, name: str) -> None:
    if sanitises(CHAINS[name]):
        pytest.skip("this torchvision cannot sanitise boxes beside masks")
    chain = v2.Compose(CHAINS[name])
    loader = FastLoader(
        PackedDataset(path, joint=JOINT),
        batch_size=4,
        transform=chain,
        seed=5,
        shuffle=True,
    )
    assert "engine: torch" not in loader.explain()
    seen = 0
    for epoch in range(2):
        for batch in loader:
            for at, index in enumerate(batch["label"].tolist()):
                given = given_of(index, JOINT)
                assert_sample(batch, at, joint_oracle.sample(chain, given, index, 5, epoch))
                seen += 1
    assert seen == 2 * COUNT


@pytest.mark.parametrize("form", ["xyxy", "xywh", "cxcywh"])
@pytest.mark.parametrize("name", ["RandomResizedCrop", "padding", "flips", "sanitising"])
def test_boxes_of_every_format(path: str, form: str, name: str) -> None:
    joint = {"boxes": form, "classes": "labels"}
    chain = v2.Compose(CHAINS[name])
    (batch,) = FastLoader(
        PackedDataset(path, joint=joint), batch_size=COUNT, transform=chain, seed=2
    )
    for index in range(COUNT):
        theirs = joint_oracle.sample(chain, given_of(index, joint), index, 2, 0)
        assert_sample(batch, index, theirs)


def steps(draw: Any) -> list[Any]:
    side = st.integers(8, 60)
    step = st.one_of(
        st.builds(lambda h, w: v2.RandomResizedCrop((h, w), antialias=True), side, side),
        st.builds(lambda h, w: v2.Resize((h, w)), side, side),
        st.builds(v2.Resize, side),
        st.builds(lambda h, w: v2.CenterCrop((h, w)), side, side),
        st.builds(lambda s, f: v2.RandomCrop(s, 3, pad_if_needed=True, fill=f), side, side),
        st.builds(lambda p, f: v2.Pad(p, fill=f), st.integers(0, 9), side),
        st.builds(v2.RandomHorizontalFlip),
        st.builds(v2.RandomVerticalFlip),
        st.builds(lambda: v2.SanitizeBoundingBoxes(min_size=3)),
        st.builds(lambda: v2.ColorJitter(0.3)),
    )
    return [*draw(st.lists(step, max_size=5)), v2.Resize((21, 24)), v2.ToImage()]


@hypothesis.given(data=st.data())
def test_random_chains_are_recognised_and_equal(path: str, data: st.DataObject) -> None:
    drawn = steps(data.draw)
    hypothesis.assume(not sanitises(drawn))
    chain = v2.Compose(drawn)
    loader = FastLoader(
        PackedDataset(path, joint=JOINT), batch_size=5, transform=chain, seed=1, num_workers=0
    )
    assert "engine: torch" not in loader.explain(), chain
    batch = next(iter(loader))
    for index in range(5):
        theirs = joint_oracle.sample(chain, given_of(index, JOINT), index, 1, 0)
        assert_sample(batch, index, theirs)


# --- the dataset, and chains that only Python can do ----------------------------------------------


def test_samples_of_the_dataset_are_those_of_the_batches(path: str) -> None:
    dataset = PackedDataset(path, FIXED, joint=JOINT)
    assert dataset.fields == tuple(JOINT)
    (batch,) = FastLoader(dataset, batch_size=COUNT)
    sample = dataset[3]
    assert list(sample) == ["image", "label", *JOINT]
    assert sample["mask"].shape == (30, 40) and sample["boxes"].shape == (3, 4)
    for name, value in sample.items():
        assert torch.equal(torch.as_tensor(value), batch[name][3]), name
    assert batch["mask"].shape == (COUNT, 30, 40) and batch["mask"].dtype == torch.uint8
    assert [len(boxes) for boxes in batch["boxes"]] == [i % 4 for i in range(COUNT)]
    masks = PackedDataset(path, FIXED, joint={"mask": "mask"})
    from_torch = next(iter(DataLoader(masks, batch_size=COUNT, num_workers=1)))
    assert torch.equal(from_torch["mask"], batch["mask"])


def test_without_a_transform_masks_are_as_they_were_packed(path: str) -> None:
    for i, sample in enumerate(PackedDataset(path, joint=JOINT)):
        given = given_of(i, JOINT)
        assert torch.equal(sample["mask"], given["mask"].as_subclass(torch.Tensor))
        assert torch.equal(sample["boxes"], given["boxes"].as_subclass(torch.Tensor))
    assert i == COUNT - 1


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_chain_that_only_python_does_gives_the_same_batches(path: str, num_workers: int) -> None:
    chain = v2.Compose([*FIXED.transforms[:1], v2.Identity(), *FIXED.transforms[1:]])
    unknown = v2.Compose([v2.Lambda(lambda value: value), *FIXED.transforms])
    loader = FastLoader(
        PackedDataset(path, joint=JOINT), batch_size=4, transform=unknown, num_workers=num_workers
    )
    assert "because: Lambda is not a transform" in loader.explain()
    for ours, theirs in zip(
        loader,
        FastLoader(PackedDataset(path, joint=JOINT), batch_size=4, transform=chain),
        strict=True,
    ):
        assert list(ours) == list(theirs)
        for name, values in theirs.items():
            assert type(ours[name]) is type(values)
            for one, other in zip(ours[name], values, strict=True):
                torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-5)


def test_other_fields_come_beside_those_that_move(path: str) -> None:
    loader = FastLoader(
        PackedDataset(path, fields=("key", "classes"), joint={"mask": "mask"}),
        batch_size=4,
        transform=FIXED,
    )
    batch = next(iter(loader))
    assert list(batch) == ["image", "label", "key", "classes", "mask"]
    assert batch["classes"][3] == [30, 31, 32]
    again = FastLoader(loader.dataset, batch_size=4, transform=FIXED)
    assert torch.equal(next(iter(again))["mask"], batch["mask"])


@pytest.mark.parametrize(
    ("dtype", "file"),
    [(np.int32, None), (np.int32, "PNG"), (np.float32, None), (np.float32, "TIFF")],
)
def test_masks_have_the_dtype_of_their_arrays_and_files(
    tmp_path: Path, dtype: type[np.generic], file: str | None
) -> None:
    rng = np.random.default_rng(0)
    masks = rng.integers(0, 60_000, (4, 20, 30)).astype(dtype)
    if dtype is np.float32:
        masks /= 77
    stored: list[Any] = list(masks)
    if file is not None:
        depth = np.uint16 if file == "PNG" else dtype
        for i, mask in enumerate(masks):
            written = io.BytesIO()
            Image.fromarray(mask.astype(depth)).save(written, file)
            stored[i] = written.getvalue()
    boxes = np.tile(np.array([[2, 3, 20, 15]], np.float32), (4, 2, 1))
    with open_writer(tmp_path / "a.lmdb", classes=[]) as writer:
        for i in range(4):
            buffer = io.BytesIO()
            torchvision_oracle.picture(30, 20, i).save(buffer, "PNG")
            fields = {"mask": stored[i], "boxes": boxes[i]}
            writer.append([
                Record(
                    data=buffer.getvalue(), label=0, key=f"{i}", width=30, height=20, fields=fields
                )
            ])  # fmt: skip
    chain = v2.Compose([v2.RandomResizedCrop(16), v2.RandomHorizontalFlip(), v2.ToImage()])
    joint = {"mask": "mask", "boxes": "xyxy"}
    loader = FastLoader(
        PackedDataset(tmp_path / "a.lmdb", joint=joint), batch_size=4, transform=chain, seed=1
    )
    (batch,) = loader
    for i in range(4):
        given = {
            "image": torchvision_oracle.picture(30, 20, i),
            "mask": tv_tensors.Mask(torch.from_numpy(masks[i])),
            "boxes": tv_tensors.BoundingBoxes(
                torch.from_numpy(boxes[i]), format="XYXY", canvas_size=(20, 30)
            ),
        }
        assert_sample(batch, i, joint_oracle.sample(chain, given, i, 1, 0))


@pytest.mark.parametrize("cache", ["ram", "decoded"])
def test_a_cache_changes_nothing(path: str, cache: str) -> None:
    chain = v2.Compose([v2.Resize(40), v2.RandomCrop(32), v2.ToImage()])
    dataset, given = PackedDataset(path, chain, joint=JOINT), {"batch_size": 5, "seed": 3}
    cached, plain = FastLoader(dataset, cache=cache, **given), FastLoader(dataset, **given)
    for _ in range(3):
        for ours, theirs in zip(cached, plain, strict=True):
            assert torch.equal(ours["image"], theirs["image"])
            assert torch.equal(ours["mask"], theirs["mask"])


# --- errors ---------------------------------------------------------------------------------------

DECLINED = {
    "turning": (
        v2.Compose([v2.RandomRotation(9), v2.ToImage()]),
        "RandomRotation transforms masks",
    ),
    "policies": (
        v2.Compose([v2.RandomApply([v2.RandAugment()]), v2.ToImage()]),
        "RandomApply transforms masks",
    ),
    "nearest-exact": (
        v2.Compose([v2.Resize((8, 8), Mode.NEAREST_EXACT), v2.ToImage()]),
        "'nearest-exact', which applies to masks too",
    ),
    "colours for masks": (
        v2.Compose([v2.CenterCrop(9), v2.Pad(1, fill=(1, 2, 3)), v2.ToImage()]),
        "Pad itself fails on masks",
    ),
    "a crop after the masks are plain tensors": (
        v2.Compose([v2.Resize((30, 40)), v2.ToImage(), v2.ToPureTensor(), v2.CenterCrop(9)]),
        "CenterCrop comes after ToPureTensor, after which torchvision transforms only the image",
    ),
    "a flip after a cast": (
        v2.Compose([
            v2.Resize((30, 40)),
            v2.ToImage(),
            v2.ToDtype({tv_tensors.Mask: torch.float16, "others": None}),
            v2.RandomVerticalFlip(),
        ]),
        "RandomVerticalFlip comes after a cast of mask; put ToDtype last",
    ),
    "a getter": (
        v2.Compose([
            v2.SanitizeBoundingBoxes(labels_getter=lambda given: given["classes"]), v2.ToImage()
        ]),
        "SanitizeBoundingBoxes with labels_getter=",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DECLINED)
def test_chains_that_move_otherwise_stay_in_python(path: str, name: str) -> None:
    chain, reason = DECLINED[name]
    text = FastLoader(PackedDataset(path, joint=JOINT), transform=chain).explain()
    assert "engine: torch" in text and reason in text


def test_a_chain_of_v1_which_takes_no_masks_is_refused_when_the_loader_is_made(path: str) -> None:
    dataset = PackedDataset(path, joint=JOINT)
    with pytest.raises(UsageError, match="got v1's Resize: from torchvision"):
        FastLoader(dataset, transform=v1.Compose([v1.Resize((8, 8)), v1.ToTensor()]))
    of_v2 = v1.Compose([v2.Resize((8, 8)), v1.Lambda(lambda given: given), v2.ToImage()])
    (batch,) = FastLoader(dataset, batch_size=1, sampler=[0], transform=of_v2, num_workers=0)
    assert batch["mask"].shape == (1, 8, 8)


def test_arguments_that_cannot_be_are_refused(path: str) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"joint": {"mask": "masks"}}, "expected one of mask, xyxy"),
        ({"joint": {"masks": "mask"}}, r"expected a field of the store \(mask, boxes"),
        ({"joint": {"boxes": "mask"}}, "expected an image file"),
        ({"joint": {"mask": "xyxy"}}, "expected numbers"),
        ({"joint": ["mask"]}, "joint: expected a dict"),
        (
            {"joint": {"mask": "mask"}, "transform": [FIXED, FIXED]},
            "expected one transform, got a list",
        ),
    ]
    for given, message in cases:
        with pytest.raises(UsageError, match=message):
            PackedDataset(path, **given)


def test_a_mask_that_cannot_be_is_an_error_of_its_record(path: str, tmp_path: Path) -> None:
    store = open_store(path)
    buffer = io.BytesIO()
    torchvision_oracle.picture(20, 10).save(buffer, "BMP")
    bad = [b"no image", png(np.zeros((4, 5), np.uint8)), png(np.zeros((10, 20, 3), np.uint8))]
    good = png(np.full((10, 20), 7, np.uint8))
    with open_writer(tmp_path / "a.lmdb", classes=[]) as writer:
        writer.append([
            Record(
                data=buffer.getvalue(), label=i, key=f"{i}", width=20, height=10,
                fields={"mask": mask},
            )
            for i, mask in enumerate([good, *bad, good])
        ])  # fmt: skip
    given: dict[str, Any] = {"transform": FIXED, "joint": {"mask": "mask"}}
    for index, message in [(1, "cannot identify"), (2, "20x10 pixels"), (3, "mode RGB")]:
        dataset = PackedDataset(tmp_path / "a.lmdb", **given)
        with pytest.raises(DataError, match=message) as caught:
            dataset[index]
        assert caught.value.record == index
    dataset = PackedDataset(tmp_path / "a.lmdb", **given)
    loader = FastLoader(dataset, batch_size=5, on_error="skip", max_errors=3)
    (batch,) = loader
    assert batch["label"].tolist() == [0, 4] and (batch["mask"] == 7).all()
    assert len(batch["mask"]) == len(batch["image"]) == 2
    assert [entry["index"] for entry in loader.stats()["errors"]] == [1, 2, 3]
    assert store.fields["mask"].kind == "bytes"


def detection(path: Path, fields: list[dict[str, Any]]) -> Path:
    """A store of 20 x 10 images with these fields."""
    buffer = io.BytesIO()
    torchvision_oracle.picture(20, 10).save(buffer, "BMP")
    with open_writer(path, classes=[]) as writer:
        writer.append([
            Record(
                data=buffer.getvalue(), label=0, key=f"{i}", width=20, height=10, fields=given
            )
            for i, given in enumerate(fields)
        ])  # fmt: skip
    return path


@pytest.mark.parametrize("kind", ["array", "JSON"])
def test_one_box_by_itself_moves_as_a_list_of_one(tmp_path: Path, kind: str) -> None:
    boxes = np.array([[2, 3, 12, 8], [0, 1, 5, 9]], np.float32)
    path = detection(
        tmp_path / "a.lmdb",
        [
            {"boxes": box if kind == "array" else box.tolist(), "classes": 4 + i}
            for i, box in enumerate(boxes)
        ],
    )
    chain = v2.Compose([v2.RandomHorizontalFlip(1.0), v2.SanitizeBoundingBoxes(), v2.ToImage()])
    joint = {"boxes": "xyxy", "classes": "labels"}
    (batch,) = FastLoader(PackedDataset(path, joint=joint), batch_size=2, transform=chain)
    assert [found.tolist() for found in batch["boxes"]] == [[[8, 3, 18, 8]], [[15, 1, 20, 9]]]
    assert [found.tolist() for found in batch["classes"]] == [[4], [5]]


@pytest.mark.filterwarnings("ignore:Creating an ndarray from ragged")  # of NumPy before 1.24
@pytest.mark.parametrize("labels", [["cat"], {"a": 1}, None, [[1], [2, 3]]])
def test_labels_that_are_no_numbers_are_an_error_of_their_record(
    tmp_path: Path, labels: Any
) -> None:
    good = {"boxes": [[2, 3, 12, 8]], "classes": [1]}
    path = detection(tmp_path / "a.lmdb", [good, {**good, "classes": labels}])
    joint = {"boxes": "xyxy", "classes": "labels"}
    with pytest.raises(DataError, match="a number for each box") as caught:
        list(FastLoader(PackedDataset(path, joint=joint), batch_size=2, transform=FIXED))
    assert caught.value.record == 1


def test_boxes_are_sanitised_before_a_padding_where_no_mask_moves(path: str) -> None:
    joint = {"boxes": "xyxy", "classes": "labels"}
    chain = v2.Compose(
        [v2.SanitizeBoundingBoxes(), v2.RandomCrop(70, pad_if_needed=True, fill=7), v2.ToImage()]
    )
    (batch,) = FastLoader(
        PackedDataset(path, joint=joint), batch_size=COUNT, transform=chain, seed=4
    )
    for index in range(COUNT):
        theirs = joint_oracle.sample(chain, given_of(index, joint), index, 4, 0)
        assert_sample(batch, index, theirs)
