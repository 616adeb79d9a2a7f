"""The code blocks of README.md and docs/*.md run as they stand, in the order of their page.

A page's blocks are typed into one interpreter and one shell, in a folder with the data that they
name (``DATA``): folders of images, lists, stores, a training script. Names are never made
for them: what a block uses it imports, or a block above it does. Blocks in another language than
``python`` and ``sh`` are illustrations.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import json
import os
import pickle
import re
import shlex
import shutil
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms

import warm
from bench import synthetic
from fastload import FastLoader, open_writer, pack
from fastload.cli import main
from fastload.storage import Record
from torchrun import torchrun

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

# Lines of a shell that are not run here, by how they begin, and why.
NOT_RUN = {
    "apt ": "changes the system",
    "pip ": "installs packages",
    "git clone ": "fetches over the network",
    "cd ": "is the reader's shell",
    "make ": "sets up .venv, tests or measures for minutes",
    "python -m bench ": "measures for minutes; tests/bench runs it in small",
    "torchrun ": "runs in test_the_blocks_of_distributed_md_run_on_two_ranks",
    "srun ": "needs a cluster",
    "fastload pack /shared/": "needs a cluster; tests/converters/test_pack_ray.py has one",
    "accelerate launch ": "starts what tests/trainers runs",
}
LONG = {
    "fastload autotune ": "searches for a minute",
    "fastload doctor --apply ": "runs the script five times; tests/tools/doctor does so",
}


# Packages that blocks import and that need not be installed.
OPTIONAL = ("accelerate", "albumentations", "datasets", "lance", "lightning", "timm")


class Block(NamedTuple):
    """A code block: its page, the line of its first line there, its language, its text."""

    page: Path
    line: int
    language: str
    text: str


def blocks(page: Path) -> list[Block]:
    found, text = [], page.read_text(encoding="utf-8")
    for match in re.finditer(r"^ *```(\w*)\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL):
        line = text.count("\n", 0, match.start(2)) + 1
        found.append(Block(page, line, match[1], match[2]))
    return found


# --- the data that blocks name ----------------------------------------------------------------

TRAIN = """
import argparse
import torch
from torch.utils.data import DataLoader
from torchvision import transforms as T
from torchvision.datasets import ImageFolder

train_tf = T.Compose([T.RandomResizedCrop(64), T.RandomHorizontalFlip(), T.ToTensor()])
model = torch.nn.Conv2d(3, 21, kernel_size=1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def train_step(batch):
    images, labels = batch
    loss = torch.nn.functional.cross_entropy(model(images).mean((2, 3)), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    loader = DataLoader(ImageFolder("imgs", transform=train_tf), batch_size=4, shuffle=True)
    for epoch in range(parser.parse_args().epochs):
        for batch in loader:
            train_step(batch)
"""

MYMODULE = """
import datasets
import torch
from torchvision.transforms.functional import to_pil_image

ds = datasets.load_from_disk("saved")

class MyDataset(torch.utils.data.Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        return to_pil_image(torch.full((3, 8, 8), index / 6)), index % 2
"""


def images(folder: Path) -> None:
    """16 photos of cats and dogs, whose names begin with that of the folder."""
    synthetic.make_images(folder, 16, classes=2, seed=1)
    for number, name in enumerate(("cat", "dog")):
        (folder / f"class{number}").rename(folder / name)
        for file in (folder / name).iterdir():
            file.rename(file.with_name(f"{folder.name}-{file.name}"))


def listed(path: Path) -> None:
    names = sorted(path.parent.glob("imgs/*/*.jpg"))
    lines = [f"{name.relative_to(path.parent)},{name.parent.name}\n" for name in names]
    path.write_text("path,label\n" + "".join(lines))


def hugging_face(folder: Path) -> Any:
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    return datasets.load_dataset("imagefolder", data_dir=str(folder), split="train")


def cifar(path: Path) -> None:
    rng = np.random.default_rng(1)
    batch = {b"data": rng.integers(0, 256, (4, 3072), dtype=np.uint8), b"labels": [0, 1, 2, 3]}
    files: dict[str, Any] = {f"data_batch_{number}": batch for number in range(1, 6)}
    files["batches.meta"] = {b"label_names": [f"class {number}".encode() for number in range(10)]}
    with tarfile.open(path, "w:gz") as tar:
        for name, content in files.items():
            data = pickle.dumps(content, 2)
            member = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))


def segmentation(path: Path) -> None:
    """Images with a mask each, of 21 classes."""
    mask = path.with_name("mask.png")
    Image.fromarray(np.arange(480 * 640, dtype=np.uint8).reshape(480, 640) % 21).save(mask)
    annotated(path, {"mask": mask.read_bytes()})


def detection(path: Path) -> None:
    fields = {"boxes": [[10, 20, 300, 400], [5, 5, 50, 60]], "labels": [17, 3]}
    annotated(path, fields, {"joint": {"boxes": "xyxy", "labels": "labels"}})


def annotated(path: Path, fields: dict[str, Any], metadata: dict[str, Any] | None = None) -> None:
    photo(path.with_name("one.jpg"))
    data = path.with_name("one.jpg").read_bytes()
    with open_writer(path, metadata=metadata) as writer:
        for number in range(4):
            key, size = f"{number}.jpg", {"width": 640, "height": 480}
            writer.append([Record(data=data, label=None, key=key, fields=fields, **size)])


def flat(folder: Path) -> None:
    """One photo, or its mask, called alike."""
    folder.mkdir()
    photo(folder.with_name("one.jpg"))
    with Image.open(folder.with_name("one.jpg")) as image:
        if folder.name == "masks":
            image.convert("L").save(folder / "one.png")
        else:
            image.save(folder / "one.jpg")


def coco(path: Path) -> None:
    """COCO's annotations of ``images``."""
    image = {"id": 1, "file_name": "one.jpg", "width": 640, "height": 480}
    box = {"id": 1, "image_id": 1, "category_id": 3, "bbox": [10, 20, 30, 40]}
    categories = [{"id": 3, "name": "dog"}]
    given = {"images": [image], "annotations": [box], "categories": categories}
    path.write_text(json.dumps(given))


def tars(path: Path) -> None:
    """Three shards as other tools write them: without a manifest."""
    pack(path.with_name("imgs"), path)
    for number in (1, 2):
        shutil.copy(path, path.with_name(f"train-00000{number}.tar"))


def photo(path: Path) -> None:
    synthetic.make_images(path.parent / "one", 1, classes=1)
    (found,) = (path.parent / "one").rglob("*.jpg")
    Image.open(found).resize((640, 480)).save(path)


# What makes each, in this order; a page has those that it reads and does not write.
DATA: dict[str, Callable[[Path], Any]] = {
    "imgs": images,
    "imagenet": lambda path: images(path / "train"),
    "more": images,
    "food101": images,
    "train.py": lambda path: path.write_text(TRAIN),
    "list.csv": listed,
    "images": flat,
    "masks": flat,
    "instances.json": coco,
    "pairs.csv": lambda path: path.write_text("path,depth\nimages/one.jpg,masks/one.png\n"),
    "a.jpg": photo,
    "imgs.lmdb": lambda path: pack(path.with_name("imgs"), path),
    "imgs.h5": lambda path: pack(path.with_name("imgs"), path),
    "train-000000.tar": tars,
    "photos.lmdb": lambda path: pack(path.with_name("imgs"), path),
    "drawings.lmdb": lambda path: pack(path.with_name("imgs"), path, encode="dct"),
    "pixels.h5": lambda path: pack(path.with_name("imgs"), path, encode="raw", resize="crop:32"),
    "voc.lmdb": segmentation,
    "coco.lmdb": detection,
    "cifar-10-python.tar.gz": cifar,
    "saved": lambda path: hugging_face(path.with_name("imgs")).save_to_disk(path),
    "mymodule.py": lambda path: path.write_text(MYMODULE),
}
PACKING = [
    "imgs",
    "imagenet",
    "more",
    "list.csv",
    "images",
    "masks",
    "instances.json",
    "pairs.csv",
    "a.jpg",
    "cifar-10-python.tar.gz",
    "saved",
    "mymodule.py",
]
READ = {
    "buckets.md": ["imgs", "imgs.lmdb"],
    "coming-from.md": ["imgs", "train-000000.tar"],
    "README.md": ["imgs", "train.py"],
    "distributed.md": ["imgs", "imgs.lmdb"],
    "faq.md": ["imgs"],
    "formats.md": ["imgs", "imgs.lmdb", "imgs.h5", "pixels.h5"],
    "gpu.md": ["imgs", "imgs.lmdb"],
    "huggingface.md": ["imgs", "food101", "saved", "mymodule.py"],
    "mixing.md": ["imgs", "photos.lmdb", "drawings.lmdb"],
    "packing.md": PACKING,
    "performance.md": ["imgs", "imgs.lmdb"],
    "recipes.md": ["imgs", "imgs.lmdb"],
    "remote.md": ["imgs"],
    "trainers.md": ["imgs", "imgs.lmdb"],
    "transforms.md": ["imgs", "imgs.lmdb", "train.py", "voc.lmdb", "coco.lmdb"],
    "tuning.md": ["imgs", "imgs.lmdb", "train.py"],
    "your-dataset.md": ["imgs"],
}


ONE_RANK = {
    "RANK": "0",
    "WORLD_SIZE": "1",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "0",
    "SLURM_PROCID": "0",
    "SLURM_NTASKS": "1",
}


def make_data(page: Path, folder: Path) -> None:
    """What the blocks of ``page`` read, in ``folder``."""
    for name, make in DATA.items():
        if name in READ.get(page.name, ()):
            make(folder / name)


@contextlib.contextmanager
def s3_server(folder: Path) -> Iterator[dict[str, str]]:
    """A server with ``folder`` in a bucket, and the environment in which s3:// leads there."""
    fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    moto = pytest.importorskip("moto.server", reason="moto is not installed")
    server = moto.ThreadedMotoServer(port=0)
    server.start()
    try:
        host, port = server.get_host_and_port()
        url = f"http://{host}:{port}"
        system = fsspec.filesystem("s3", endpoint_url=url, key="test", secret="test")
        system.mkdir("bucket")
        system.put(str(folder), f"bucket/{folder.name}", recursive=True)
        keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
        yield {"AWS_ENDPOINT_URL": url, **keys}
    finally:
        server.stop()


# --- running them -----------------------------------------------------------------------------


def absent(block: Block) -> str | None:
    """Why a block of Python cannot run on this machine, or None."""
    if "s3://" in block.text or "hf://" in block.text:
        return "it needs a bucket; tests/storage/remote and tests/loader read from servers"
    if re.search("^import ray", block.text, re.MULTILINE):
        return "it starts a cluster; tests/trainers/test_ray_train.py runs it"
    if 'device="cuda"' in block.text and not torch.cuda.is_available():
        return "no CUDA device"
    for name in re.findall(r"^(?:from|import) (\w+)", block.text, re.MULTILINE):
        if name in OPTIONAL and importlib.util.find_spec(name) is None:
            return f"{name} is not installed"
    return None


def run_python(block: Block, names: dict[str, Any]) -> None:
    # At its own line of the page, so that a traceback shows it there.
    code = "\n" * (block.line - 1) + block.text
    exec(compile(code, str(block.page), "exec"), names)


def lines_of(block: Block) -> Iterator[str]:
    """The command lines of a block of shell, continued ones joined, without comments."""
    for line in block.text.replace("\\\n", " ").splitlines():
        words = line.strip()
        if words and not words.startswith("#"):
            yield words


def run_command(line: str, folder: Path, *, long: bool) -> str | None:
    """Run ``line`` if it is a command of fastload; why it was not run, or None."""
    for begin, reason in {**NOT_RUN, **({} if long else LONG)}.items():
        if f"{line} ".startswith(begin):
            return reason
    program, *words = shlex.split(line, comments=True)
    words += ["--force"] * (words[0] == "autotune")  # this machine may be busy
    assert program == "fastload", f"expected a command of fastload or one of NOT_RUN: {line}"
    if words[0] == "doctor":  # here, where its scripts run in processes that have torch imported
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code in (None, 0, 3), line  # 3: it found something
        return None
    with s3_server(folder / "imgs") if "s3://" in line else contextlib.nullcontext({}) as there:
        given = {"cwd": folder, "env": {**os.environ, **there}, "finalize": False}
        done = warm.run(["-m", "fastload", *words], **given)
    assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
    return None


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where a reader sits: the current folder, whose modules can be imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    examine = importlib.import_module("fastload._tools.doctor.examine")
    monkeypatch.setattr(examine, "subprocess", warm.SUBPROCESS)
    monkeypatch.setenv("NO_ALBUMENTATIONS_UPDATE", "1")  # else it asks the network when imported
    if importlib.util.find_spec("datasets") is not None:
        import datasets

        monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / ".cache")
    yield tmp_path
    for module in ("train", "mymodule"):
        sys.modules.pop(module, None)


@pytest.mark.filterwarnings("ignore:.*isinstance.treespec:FutureWarning")  # of Lightning, in torch
@pytest.mark.timeout(600)  # of README.md some commands start several processes that import torch
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_blocks_of_a_page_run_in_order(
    page: Path,
    folder: Path,
    subtests: pytest.Subtests,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make_data(page, folder)
    if page.name == "distributed.md":  # a job of one rank
        for name, value in ONE_RANK.items():
            monkeypatch.setenv(name, value)
    long = request.config.getoption("--long")
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(page):
        with subtests.test(f"{page.name}:{block.line}"):
            if block.language == "python":
                reason = absent(block)
                if reason is None:
                    run_python(block, names)
            elif block.language == "sh":
                reasons = [run_command(line, folder, long=long) for line in lines_of(block)]
                reason = None if None in reasons else "; ".join(sorted(set(map(str, reasons))))
            else:
                assert block.language, "expected a language behind the three backticks"
                continue
            if reason is not None:
                pytest.skip(reason)


@pytest.mark.long
def test_the_blocks_of_distributed_md_run_on_two_ranks(folder: Path) -> None:
    page = ROOT / "docs" / "distributed.md"
    make_data(page, folder)
    jobs = [block.text for block in blocks(page) if "init_process_group" in block.text]
    assert len(jobs) == 2
    for job in jobs:
        assert torchrun(f"{job}\nreport(dist.is_initialized())", folder) == [False, False]


def test_the_block_for_tasks_that_slurm_starts_divides_the_epoch_among_them(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = ROOT / "docs" / "distributed.md"
    make_data(page, folder)
    (block,) = [one for one in blocks(page) if "SLURM_PROCID" in one.text]
    seen: list[bytes] = []
    for task in range(2):
        monkeypatch.setenv("SLURM_PROCID", str(task))
        monkeypatch.setenv("SLURM_NTASKS", "2")
        small = transforms.Compose([transforms.Resize((32, 32)), transforms.ToTensor()])
        names = {"FastLoader": FastLoader, "train_tf": small}
        run_python(block, names)
        loader: Any = names["loader"]
        loader.set_epoch(0)
        mine = [image.numpy().tobytes() for images, _ in loader for image in images]
        assert len(mine) == 8
        seen += mine
    assert len(set(seen)) == 16


def test_a_broken_block_fails_at_its_line_of_the_page() -> None:
    with pytest.raises(NameError, match="train_tf") as raised:
        run_python(Block(PAGES[0], 40, "python", "import os\nprint(train_tf)\n"), {})
    last = raised.traceback[-1]
    assert (str(last.path), last.lineno + 1) == (str(PAGES[0]), 41)


@pytest.mark.parametrize(
    "line", ["fastload info nothing.lmdb", "fastload pakc ./imgs x.lmdb", "rm -r imgs"]
)
def test_a_command_that_fails_or_that_nobody_knows_is_an_error(line: str, folder: Path) -> None:
    with pytest.raises(AssertionError, match=line):
        run_command(line, folder, long=True)


def test_every_reason_not_to_run_a_line_is_of_some_line() -> None:
    lines = [line for page in PAGES for one in blocks(page) for line in lines_of(one)]
    begins = [*NOT_RUN, *LONG]
    assert [b for b in begins if not any(f"{line} ".startswith(b) for line in lines)] == []
    assert READ.keys() <= {page.name for page in PAGES}
