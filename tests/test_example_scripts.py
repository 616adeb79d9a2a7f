"""The scripts of examples/ run, at toy size, on images made here, and learn or resume."""

from __future__ import annotations

import ast
import csv
import importlib.util
import json
import pickle
import re
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from PIL import Image
from torchvision import datasets

import warm
from bench.synthetic import make_images
from fastload import pack

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
SMALL = ["--size", "32", "--batch-size", "4"]
NETWORK = ["--model", "shufflenet_v2_x0_5"]  # torchvision's smallest


def run(script: str, *words: object, folder: Path) -> str:
    """What a script prints when it is run in ``folder``."""
    path = ROOT / "examples" / script
    done = warm.run([path, *map(str, words)], cwd=folder, finalize=False)
    assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr[-4000:]}"
    return done.stdout


def losses(printed: str) -> list[float]:
    return [float(value) for value in re.findall(r"loss (\d+\.\d+)", printed)]


@pytest.fixture
def imgs(tmp_path: Path) -> Path:
    """16 small photos in two class folders, whose mean colours differ."""
    folder = make_images(tmp_path / "imgs", 16, classes=2, seed=1)
    for path in folder.rglob("*.jpg"):
        with Image.open(path) as image:
            image.resize((60, 48)).save(path)
    return folder


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_is_short_and_says_how_to_run_it(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) < 120
    said = ast.get_docstring(ast.parse(text)) or ""
    assert f"examples/{path.name}" in said


def test_every_example_is_run_here() -> None:
    text = Path(__file__).read_text(encoding="utf-8")
    assert [path.name for path in EXAMPLES if f'run("{path.name}"' not in text] == []


def test_imagenet_resumes_at_the_end_and_in_the_middle_of_an_epoch(imgs: Path) -> None:
    folder = imgs.parent
    pack(imgs, folder / "train.lmdb", encode="dct")
    given = ["train.lmdb", "imgs", *NETWORK, "--epochs", 2, *SMALL]
    assert run("imagenet.py", *given, "--steps", 4, folder=folder) == ""  # all of epoch 0
    printed = run("imagenet.py", *given, "--steps", 7, folder=folder)
    assert printed.startswith("resumed after step 4\nepoch 0: loss nan, accuracy ")
    printed = run("imagenet.py", *given, folder=folder)
    assert printed.startswith("resumed after step 7\nepoch 1: loss ")
    assert len(re.findall(r"epoch \d: loss \d+\.\d+, accuracy \d+\.\d%", printed)) == 1


@pytest.mark.long
def test_imagenet_trains_on_two_ranks(imgs: Path) -> None:
    given = ["imgs", "imgs", *NETWORK, "--epochs", 1, *SMALL]
    script = ROOT / "examples" / "imagenet.py"
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2, script, *given]
    done = warm.run(words, cwd=imgs.parent)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.count("epoch 0: loss") == 1  # the first rank alone prints


def test_cifar_is_read_as_torchvision_left_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(1)
    base = tmp_path / "data" / datasets.CIFAR10.base_folder
    base.mkdir(parents=True)
    names = [name for name, _ in datasets.CIFAR10.train_list + datasets.CIFAR10.test_list]
    for name in names:
        data = rng.integers(0, 256, (8, 3072), dtype=np.uint8)
        (base / name).write_bytes(pickle.dumps({"data": data, "labels": list(range(8))}))
    (base / "batches.meta").write_bytes(pickle.dumps({"label_names": list("abcdefghij")}))
    # Made data has other checksums than torchvision's; the script is given the check's outcome.
    unchecked = (
        "import runpy, sys; from torchvision import datasets; sys.argv = sys.argv[1:]; "
        "datasets.CIFAR10._check_integrity = lambda self: True; "
        "datasets.cifar.check_integrity = lambda *_: True; "
        "runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    script = ROOT / "examples" / "cifar.py"  # as run("cifar.py", ...)
    given = ["--epochs", "2", "--batch-size", "8", "--width", "4"]
    done = warm.run(["-c", unchecked, script, *given], cwd=tmp_path, finalize=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert re.search(r"^engine: (rows|native)", done.stdout, re.MULTILINE), done.stdout
    assert len(re.findall(r"epoch \d: accuracy \d+\.\d%, [\d,]+ images/s", done.stdout)) == 2


def test_segmentation_packs_pairs_and_trains_on_them(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    for name in ("images", "masks"):
        (tmp_path / name).mkdir()
    for number in range(8):  # bright pixels are class 1
        light = np.kron(rng.integers(0, 2, (4, 5), dtype=np.uint8), np.ones((12, 12), np.uint8))
        pixels = np.repeat(60 + 120 * light[..., None], 3, axis=2)
        Image.fromarray(pixels).save(tmp_path / "images" / f"{number}.jpg")
        Image.fromarray(light).save(tmp_path / "masks" / f"{number}.png")
    given = ["images", "masks", "--classes", 2, "--width", 4, "--epochs", 6, *SMALL]
    found = losses(run("segmentation.py", *given, folder=tmp_path))
    assert len(found) == 6 and found[-1] < found[0]  # masks lie where their images do


def test_detection_packs_boxes_and_trains_on_them(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    (tmp_path / "images").mkdir()
    images, annotations = [], []
    for number in range(6):
        pixels = np.full((60, 80, 3), 40, np.uint8)
        x, y, side = (int(value) for value in rng.integers(10, 30, 3))
        pixels[y : y + side, x : x + side] = 200
        Image.fromarray(pixels).save(tmp_path / "images" / f"{number}.jpg")
        images.append({"id": number, "file_name": f"{number}.jpg", "width": 80, "height": 60})
        box = {"id": number, "image_id": number, "category_id": 5, "bbox": [x, y, side, side]}
        annotations.append(box)
    given = {"images": images, "annotations": annotations, "categories": [{"id": 5, "name": "box"}]}
    (tmp_path / "boxes.json").write_text(json.dumps(given))
    words = ["images", "boxes.json", "--width", 4, "--epochs", 12, *SMALL]
    found = losses(run("detection.py", *words, folder=tmp_path))
    assert len(found) == 12 and found[-1] < found[0]


@pytest.mark.parametrize("labelled", [True, False])
def test_contrastive_takes_images_with_and_without_labels(imgs: Path, labelled: bool) -> None:
    source = imgs if labelled else imgs / "class0"
    given = [source, *NETWORK, "--epochs", 1, *SMALL]
    assert len(losses(run("contrastive.py", *given, folder=imgs.parent))) == 1


def test_own_dataset_defers_its_images(imgs: Path) -> None:
    with open(imgs.parent / "labels.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["file", "label"])
        for path in sorted(imgs.rglob("*.jpg")):
            writer.writerow([path.relative_to(imgs), path.parent.name])
    given = ["labels.csv", "--images", imgs, "--workers", 1, *NETWORK, "--epochs", 1, *SMALL]
    printed = run("own_dataset.py", *given, folder=imgs.parent)
    assert len(losses(printed)) == 1
    assert "16 tensors stayed deferred" in printed


def installed(name: str) -> None:
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")


@pytest.mark.long
def test_lightning_trains_from_a_data_module(imgs: Path) -> None:
    installed("lightning")
    given = [imgs, "--devices", 1, *NETWORK, "--epochs", 1, *SMALL]
    assert "engine: native" in run("lightning_module.py", *given, folder=imgs.parent)
    assert list(imgs.parent.glob("lightning/**/*.ckpt"))


@pytest.mark.long
def test_hugging_faces_trainer_takes_every_step(imgs: Path) -> None:
    installed("transformers")
    given = [imgs, "--epochs", 1, "--layers", 1, *SMALL]
    assert "4 steps, loss " in run("hf_trainer.py", *given, folder=imgs.parent)


@pytest.mark.long
def test_streaming_trains_from_s3_and_fetches_nothing_twice(
    imgs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("obstore", "boto3", "moto"):
        installed(name)
    import boto3
    from moto.server import ThreadedMotoServer

    folder = imgs.parent
    pack(imgs, folder / "train.lmdb")
    server = ThreadedMotoServer("127.0.0.1", port=0)
    server.start()
    try:
        host, port = server.get_host_and_port()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        monkeypatch.setenv("AWS_REGION", "us-east-1")
        client = boto3.client("s3", region_name="us-east-1")
        client.create_bucket(Bucket="bucket")
        client.upload_file(str(folder / "train.lmdb"), "bucket", "train.lmdb")
        given = ["s3://bucket/train.lmdb", "--cache-dir", "cache", *NETWORK, *SMALL, "--lr", 0.01]
        printed = run("streaming_s3.py", *given, "--epochs", 1, folder=folder)
        assert re.search(r"epoch 0: loss \d.*, [\d.]+ MB in \d+ requests", printed)
        printed = run("streaming_s3.py", *given, "--epochs", 2, folder=folder)
    finally:
        server.stop()
    assert len(losses(printed)) == 1 and "epoch 1: loss" in printed
    assert "0.0 MB in 0 requests" in printed  # the first run has left all in the cache


def notebook() -> dict[str, Any]:
    """examples/fastload.ipynb as it is kept."""
    text = (ROOT / "examples" / "fastload.ipynb").read_text(encoding="utf-8")
    return cast(dict[str, Any], json.loads(text))


def test_the_notebook_is_kept_without_outputs() -> None:
    cells = [cell for cell in notebook()["cells"] if cell["cell_type"] == "code"]
    assert len(cells) > 5
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells)
    for cell in cells:
        ast.parse("".join(cell["source"]))


@pytest.mark.long
def test_the_notebook_runs_and_shows_tables_pictures_and_the_timeline(imgs: Path) -> None:
    installed("nbclient")
    installed("ipykernel")
    import nbclient
    import nbformat

    made = nbformat.read(ROOT / "examples" / "fastload.ipynb", as_version=4)
    resources = {"metadata": {"path": str(imgs.parent)}}
    nbclient.NotebookClient(made, timeout=300, resources=resources).execute()
    shown = [
        output["data"]
        for cell in made.cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if "data" in output
    ]
    kinds = [kind for data in shown for kind in data]
    assert kinds.count("text/html") == 5  # pack, the loader, two epochs of watch, the figures
    assert kinds.count("image/png") == 3  # the grid, the timeline, the stages
    pages = [data["text/html"] for data in shown if "text/html" in data]
    assert pages[0].count("<img ") == 8
    assert sum("2 of 2 batches in " in page for page in pages) == 2  # the last state of each
    assert (imgs.parent / "run.json").exists()
