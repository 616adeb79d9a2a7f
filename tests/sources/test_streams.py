"""Streaming datasets of Hugging Face: the rows of iterating them, with images decoded natively."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader
from torchvision import transforms as v1
from torchvision.transforms import v2

from fastload import FastLoader, UsageError
from fastload.errors import DataError

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
hf = pytest.importorskip("datasets")

EVAL = v1.Compose([v1.Resize(32), v1.CenterCrop(24), v1.ToTensor()])
TRAIN = v2.Compose([v2.RandomResizedCrop(24), v2.RandomHorizontalFlip(), v2.ToImage()])
ROWS = 40


def encoded(i: int) -> bytes:
    small = np.random.default_rng(i).integers(0, 256, (6, 7, 3), np.uint8)
    exif = Image.Exif()
    if i % 10 == 7:
        exif[0x0112] = 6
    buffer = io.BytesIO()
    image = Image.fromarray(small).resize((40 + i % 9, 36), Image.Resampling.BICUBIC)
    image.save(buffer, "PNG" if i % 5 == 3 else "JPEG", exif=exif)
    return buffer.getvalue()


def written(folder: Path, files: list[bytes | None] | None = None) -> list[str]:
    """Four Parquet files, as the Hub has them."""
    features = hf.Features(
        {
            "image": hf.Image(),
            "label": hf.ClassLabel(names=["a", "b", "c"]),
            "name": hf.Value("string"),
            "tags": hf.Sequence(hf.Value("int32")),
        }
    )
    found = [encoded(i) for i in range(ROWS)] if files is None else files
    paths = []
    for first in range(0, ROWS, 10):
        some = range(first, first + 10)
        columns = {
            "image": [{"bytes": found[i], "path": f"{i}.jpg"} for i in some],
            "label": [i % 3 for i in some],
            "name": [f"n{i}" for i in some],
            "tags": [list(range(i % 3)) for i in some],
        }
        path = folder / f"train-{first // 10}.parquet"
        hf.Dataset.from_dict(columns, features=features).to_parquet(path)
        paths.append(str(path))
    return paths


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return written(tmp_path_factory.mktemp("stream"))


def stream(files: list[str]) -> Any:
    return hf.load_dataset("parquet", data_files=files, split="train", streaming=True)


def same(ours: list[Any], theirs: list[Any]) -> None:
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert list(one) == ["image", "label", "name", "tags"]
        assert torch.equal(one["image"], other["image"])
        for name in ("label", "name", "tags"):
            mine, its = one[name], other[name]
            assert (mine.tolist() if isinstance(mine, torch.Tensor) else mine) == its


def listed(rows: list[dict[str, Any]]) -> dict[str, Any]:
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    return {**columns, "image": torch.stack(columns["image"])}


@pytest.mark.parametrize("num_workers", [0, 2])
# datasets takes 5 s to end a shuffled stream.
@pytest.mark.parametrize("shuffled", [False, pytest.param(True, marks=pytest.mark.long)])
def test_batches_are_those_of_dataloader_bit_for_bit(
    files: list[str], num_workers: int, shuffled: bool
) -> None:
    dataset = stream(files)
    if shuffled:
        dataset = dataset.shuffle(seed=3, buffer_size=16)
    options: dict[str, Any] = {"batch_size": 6, "num_workers": num_workers}
    torch.manual_seed(7)
    ours = FastLoader(dataset, transform=TRAIN, **options)
    assert "images: deferred, and made in C++ for a whole batch" in ours.explain()
    found = list(ours)
    torch.manual_seed(7)
    # Without Dataset.map, which would transform a row before the next one is shuffled.
    theirs = DataLoader(dataset, collate_fn=Transformed(TRAIN), **options)
    same(found, list(theirs))


class Transformed:
    """Transforms the images of rows, as Pillow decoded them, and lists the other columns."""

    def __init__(self, transform: Any) -> None:
        self.transform = transform

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        made = [{**row, "image": self.transform(row["image"].convert("RGB"))} for row in rows]
        return listed(made)


@pytest.mark.native
def test_pillow_decodes_nothing_that_the_core_can(
    files: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from PIL import ImageFile

    loaded: list[tuple[int, int]] = []
    load = ImageFile.ImageFile.load

    def counted(self: Any) -> Any:
        loaded.append(self.size)
        return load(self)

    monkeypatch.setattr(ImageFile.ImageFile, "load", counted)
    for batch in FastLoader(stream(files), 8, transform=TRAIN):
        assert len(batch["image"]) == 8
    assert len(loaded) <= 2 * sum(i % 10 == 7 for i in range(ROWS))  # those that are turned


@pytest.mark.parametrize("num_workers", [0, 2])
def test_it_resumes_at_the_very_next_sample(files: list[str], num_workers: int) -> None:
    def loader() -> FastLoader[Any]:
        return FastLoader(
            stream(files),
            batch_size=3,
            transform=EVAL,
            num_workers=num_workers,
        )

    whole = list(loader())
    first = loader()
    batches = iter(first)
    for _ in range(5):
        next(batches)
    state = json.loads(json.dumps(first.state_dict()))
    second = loader()
    second.load_state_dict(state)
    rest = list(second)
    assert [batch["name"] for batch in rest] == [batch["name"] for batch in whole[5:]]
    for one, other in zip(rest, whole[5:], strict=True):
        assert torch.equal(one["image"], other["image"])


@pytest.mark.long  # see above
def test_epochs_shuffle_anew_and_set_epoch_chooses_one(files: list[str]) -> None:
    dataset = stream(files[:2]).shuffle(seed=1, buffer_size=20)
    loader = FastLoader(dataset, batch_size=8, transform=EVAL)
    loader.set_epoch(3)
    names = [name for batch in loader for name in batch["name"]]
    other = stream(files[:2]).shuffle(seed=1, buffer_size=20)
    assert [row["name"] for row in other] != names
    other.set_epoch(3)
    assert [row["name"] for row in other] == names


@pytest.mark.parametrize("num_workers", [pytest.param(0, marks=pytest.mark.long), 2])
def test_interleaved_streams_give_what_iterating_them_gives(
    files: list[str], num_workers: int
) -> None:
    dataset = hf.interleave_datasets(
        [stream(files[:2]), stream(files[2:])], probabilities=[0.3, 0.7], seed=5
    )
    options: dict[str, Any] = {"batch_size": 4, "num_workers": num_workers}
    torch.manual_seed(7)
    ours = FastLoader(dataset, transform=TRAIN, **options)
    assert "images: deferred, and made in C++ for a whole batch" in ours.explain()
    found = list(ours)
    torch.manual_seed(7)
    same(found, list(DataLoader(dataset, collate_fn=Transformed(TRAIN), **options)))


def test_concatenated_taken_and_filtered_streams_keep_their_rows(files: list[str]) -> None:
    dataset = hf.concatenate_datasets([stream(files[:1]), stream(files[2:])]).skip(3).take(20)
    dataset = dataset.filter(lambda label: label != 1, input_columns="label")
    ours = [name for batch in FastLoader(dataset, 4, transform=EVAL) for name in batch["name"]]
    assert ours == [row["name"] for row in dataset] and len(ours) > 10


def test_a_map_of_other_columns_runs_and_its_columns_are_in_the_batch(files: list[str]) -> None:
    dataset = stream(files).map(lambda row: {"twice": 2 * row["label"]}, features=None)
    dataset = dataset.cast(hf.Features({**stream(files).features, "twice": hf.Value("int64")}))
    loader = FastLoader(dataset, 6, transform=EVAL)
    (batch, *_) = loader
    assert batch["twice"].tolist() == [0, 2, 4, 0, 2, 4]
    expected = [EVAL(row["image"].convert("RGB")) for row in dataset.take(6)]
    assert torch.equal(batch["image"], torch.stack(expected))


def test_nodes_that_split_a_stream_share_its_rows(files: list[str]) -> None:
    from datasets.distributed import split_dataset_by_node

    names = []
    for rank in range(2):
        part = split_dataset_by_node(stream(files), rank=rank, world_size=2)
        loader = FastLoader(part, 4, transform=EVAL, num_workers=2)
        names.append([name for batch in loader for name in batch["name"]])
    assert not set(names[0]) & set(names[1])
    assert sorted(names[0] + names[1]) == sorted(f"n{i}" for i in range(ROWS))


@pytest.mark.long  # see above
@pytest.mark.parametrize("kind", ["shuffled", "interleaved"])
def test_a_stream_with_random_numbers_of_its_own_resumes_as_datasets_itself_does(
    files: list[str], kind: str
) -> None:
    def dataset() -> Any:
        if kind == "shuffled":
            return stream(files).shuffle(seed=1, buffer_size=7)
        parts = [stream(files[:2]), stream(files[2:])]
        return hf.interleave_datasets(parts, probabilities=[0.5, 0.5], seed=2)

    first = FastLoader(dataset(), 4, transform=EVAL)
    batches = iter(first)
    for _ in range(3):
        next(batches)
    second = FastLoader(dataset(), 4, transform=EVAL)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    ours = [name for batch in second for name in batch["name"]]
    rows = dataset()
    left = iter(rows)
    for _ in range(12):
        next(left)
    theirs = dataset()
    theirs.load_state_dict(rows.state_dict())
    assert ours == [row["name"] for row in theirs]


def test_images_that_are_files_are_opened(tmp_path: Path) -> None:
    for i in range(6):
        (tmp_path / "ab"[i % 2]).mkdir(exist_ok=True)
        (tmp_path / "ab"[i % 2] / f"{i}.jpg").write_bytes(encoded(10 * i))
    dataset = hf.load_dataset("imagefolder", data_dir=str(tmp_path), split="train", streaming=True)
    (batch,) = FastLoader(dataset, batch_size=6, transform=EVAL)
    rows = list(dataset)
    assert torch.equal(batch["image"], torch.stack([EVAL(row["image"]) for row in rows]))
    assert batch["label"].tolist() == [row["label"] for row in rows]


def test_a_collate_fn_gets_samples_and_labels_are_transformed(files: list[str]) -> None:
    def own(samples: list[dict[str, Any]]) -> Any:
        return [(sample["image"].shape, sample["label"]) for sample in samples]

    loader = FastLoader(
        stream(files), 4, transform=EVAL, target_transform=lambda label: -label, collate_fn=own
    )
    assert next(iter(loader)) == [(torch.Size([3, 24, 24]), -i) for i in (0, 1, 2, 0)]
    again = FastLoader(
        loader.dataset, 4, transform=EVAL, target_transform=loader.target_transform,
        collate_fn=loader.collate_fn,
    )  # fmt: skip
    assert next(iter(again)) == next(iter(loader))


def test_an_image_that_is_damaged_or_missing_is_an_error_that_names_it(tmp_path: Path) -> None:
    files: list[bytes | None] = [encoded(i) for i in range(ROWS)]
    files[2] = b"no image"
    with pytest.raises(DataError, match=r"row 2 of the stream") as caught:
        next(iter(FastLoader(stream(written(tmp_path, files)), 5, transform=EVAL)))
    assert caught.value.path == "2.jpg"
    loader = FastLoader(stream(written(tmp_path, files)), 5, transform=EVAL, on_error="skip")
    names = [name for batch in loader for name in batch["name"]]
    assert names == [f"n{i}" for i in range(ROWS) if i != 2]


def test_what_cannot_be_given_is_refused(files: list[str]) -> None:
    with pytest.raises(UsageError, match="only with a transform"):
        FastLoader(stream(files), 4, target_transform=str)
    with pytest.raises(UsageError, match="batch_size: expected a number"):
        FastLoader(stream(files), batch_size=None, transform=EVAL)
    with pytest.raises(UsageError, match="Image column"):
        FastLoader(stream(files).remove_columns("image"), 4, transform=EVAL)
