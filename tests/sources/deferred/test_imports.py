"""Deferring imports no library for itself, and sees one that the program imports late."""

from __future__ import annotations

import importlib
import sys
import threading
import types
from collections.abc import Callable
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

import fastload
import warm
from combinations import combinations
from fastload._sources.deferred import switch
from fastload._sources.deferred.late_import import LateImport

_PROGRAM = """
import sys
import numpy as np, PIL.Image, torch
from torch.utils.data import DataLoader, Dataset
import fastload

{imports}

class Photos(Dataset):
    kept = None

    def __len__(self):
        return 8

    def __getitem__(self, index):
        image = PIL.Image.open(sys.argv[1]).convert("RGB").resize((20, 16))
        {body}

def batches(kind, dataset):
    torch.manual_seed(0)
    workers = int(sys.argv[2])
    start = "fork" if workers else None  # others import Photos, and nothing can be imported here
    loader = kind(dataset, batch_size=2, num_workers=workers, multiprocessing_context=start)
    return list(loader)

if __name__ == "__main__":
    ours = batches(fastload.FastLoader, Photos())
    {check}
    theirs = batches(DataLoader, Photos())
    assert len(ours) == len(theirs) == 4
    for one, other in zip(ours, theirs):
        assert torch.equal(one, other)
"""

_ALONE = "return torch.from_numpy(np.array(image).transpose(2, 0, 1).copy())"

# Keeps what it made of its first sample, which is asked for with another library in later batches.
_KEPT = """if Photos.kept is None:
            Photos.kept = image, {tensor}
        if index < 4:
            return {tensor}
        image, tensor = Photos.kept
        {late}"""

_LATE = {
    "torchvision.transforms.v2": """from torchvision.transforms import v2
        marked = v2.functional.to_dtype(tensor, torch.float32, scale=True)
        fill = {PIL.Image.Image: 9, torch.Tensor: 0.3, "others": 0.6}
        turn = v2.RandomAffine((30, 30), fill=fill)
        both = turn(image), turn(marked)
        made = v2.functional.normalize(v2.functional.resize(marked, [16, 20]), [0.5] * 3, [0.2] * 3)
        return v2.functional.to_dtype(v2.functional.to_image(both[0]), scale=True) + both[1] + made
""",
    "cv2": """import cv2
        assert cv2.imread(sys.argv[1]) is not None
        return torch.from_numpy(cv2.GaussianBlur(np.asarray(image), (3, 3), 0)) + tensor[0, 0, 0]
""",
    "albumentations": """import albumentations
        from albumentations.pytorch import ToTensorV2
        chain = albumentations.Compose([albumentations.Normalize(), ToTensorV2()])
        return chain(image=np.asarray(image))["image"] + tensor
""",
}


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    path = tmp_path / "photo.jpg"
    coarse = np.random.default_rng(0).integers(0, 256, (9, 10, 3), np.uint8)
    PIL.Image.fromarray(coarse).resize((90, 80)).save(path)
    return path


def _run(photo: Path, workers: int, monkeypatch: pytest.MonkeyPatch, **parts: str) -> None:
    monkeypatch.setenv("FASTLOAD_DEFER", "1")
    words = ["-c", _PROGRAM.format(**parts), photo, workers]
    done = warm.run(words, finalize=False, only_torch=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.native
def test_a_program_without_torchvision_stays_without(
    photo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = 'assert "torchvision" not in sys.modules'
    _run(photo, 0, monkeypatch, imports="", body=_ALONE, check=check)


@pytest.mark.native
def test_a_program_without_v2_stays_without(photo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _run(
        photo,
        0,
        monkeypatch,
        imports="from torchvision import transforms as T",
        body="return T.Compose([T.RandomCrop(9), T.ToTensor(), T.Normalize([0.5], [0.2])])(image)",
        check='assert "torchvision.transforms.v2" not in sys.modules',
    )


@pytest.mark.native
@pytest.mark.parametrize(("module", "workers"), combinations([*_LATE], [0, 2]))
def test_what_a_dataset_has_kept_meets_a_library_that_it_imports_later(
    photo: Path, workers: int, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if module != "torchvision.transforms.v2":
        pytest.importorskip(module)
    tensor = "F.pil_to_tensor(image)"
    body = _KEPT.format(tensor=tensor, late=_LATE[module])
    imports = "import torchvision.transforms.functional as F"
    check = f"assert {module!r} not in sys.modules or not int(sys.argv[2])"
    _run(photo, workers, monkeypatch, imports=imports, body=body, check=check)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "imported_late.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "imported_late", raising=False)
    return "imported_late"


def test_a_late_import_is_seen_once_it_is_complete_and_keeps_its_loader(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "meta_path", [object(), *sys.meta_path])  # a finder of old
    seen: list[types.ModuleType] = []
    late = LateImport(module, lambda: seen.append(sys.modules[module]))
    late.watch(True)
    try:
        found = importlib.util.find_spec(module)
        assert found is not None and "value" in found.loader.get_source(module)
        made = importlib.import_module(module)
    finally:
        late.watch(False)
    assert seen == [made] and seen[0].value == 1
    assert made.__spec__ is not None and made.__spec__.loader is made.__loader__
    assert type(made.__loader__) is type(importlib.import_module("leaks").__loader__)
    assert late not in sys.meta_path


def _finders() -> list[LateImport]:
    return [finder for finder in sys.meta_path if isinstance(finder, LateImport)]


def test_uninstalling_takes_the_finder_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torchvision.transforms.v2", raising=False)
    fastload.uninstall()
    assert _finders() == []
    switch.install()
    switch.install()
    assert len(_finders()) == 1
    fastload.uninstall()
    assert _finders() == []


def test_an_import_waits_for_no_thread_that_exchanges(monkeypatch: pytest.MonkeyPatch) -> None:
    exchanged: list[bool] = []
    monkeypatch.setattr(switch, "_exchange", lambda: exchanged.append(True))

    def imported(call: Callable[[], None]) -> None:
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()

    with switch._LOCK:
        imported(switch._imported_late)
    assert exchanged == []
    monkeypatch.setattr(switch._USE, "rests", False)
    imported(switch._imported_late)
    assert exchanged == [True]
