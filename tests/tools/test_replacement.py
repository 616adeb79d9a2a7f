"""FastLoader in torch's place: by hand, by ``install`` and by ``patched``, which are undone."""

from __future__ import annotations

import ast
import json
import pickle
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch
import torch.utils.data
from torch.utils.data import DataLoader, Dataset, IterableDataset

import fastload
from fastload import FastLoader

TORCH = types.SimpleNamespace(DataLoader=DataLoader)  # no name of a module, which is replaced too


@pytest.fixture
def undone():
    yield
    fastload.uninstall()


class Numbers(Dataset):
    def __len__(self):
        return 10

    def __getitem__(self, index):
        return torch.tensor(index)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(4))


BY_HAND = """
import json, sys
import torch, torch.utils.data
import fastload

torch.utils.data.DataLoader = fastload.FastLoader  # before fastload's workers are imported

from torch.utils.data import DataLoader, Dataset, IterableDataset
from torchvision import transforms
from torchvision.datasets import ImageFolder

class Numbers(Dataset):
    def __len__(self):
        return 10
    def __getitem__(self, index):
        return torch.tensor(index)

class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(4))

class Doubled(DataLoader):
    def __iter__(self):
        return (2 * batch for batch in super().__iter__())

def given(loader, epochs=2):
    return [[batch.tolist() for batch in loader] for _ in range(epochs)]

if __name__ == "__main__":
    seen = {
        "here": given(DataLoader(Numbers(), 5)),
        "workers": given(DataLoader(Numbers(), 5, num_workers=2)),
        "persistent": given(DataLoader(Numbers(), 5, num_workers=2, persistent_workers=True)),
        "spawned": given(DataLoader(Numbers(), 5, num_workers=1, multiprocessing_context="spawn")),
        "stream": given(DataLoader(Stream(), 4, num_workers=1)),
        "derived": given(Doubled(Numbers(), 5, num_workers=1)),
    }
    images = ImageFolder(sys.argv[1], transforms.Compose(
        [transforms.Resize((8, 8)), transforms.ToTensor()]
    ))
    loader = DataLoader(images, 24)
    seen["engine"] = loader.stats()["engine"]
    seen["images"] = [list(batch.shape) for batch, _ in loader]
    print(json.dumps(seen))
"""


@pytest.mark.long
def test_a_fastloader_put_in_torchs_place_by_hand_runs_every_kind_of_dataset(tmp_path, photos):
    script = tmp_path / "script.py"
    script.write_text(BY_HAND)
    done = subprocess.run(
        [sys.executable, str(script), str(photos)], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr[-3000:]
    seen = json.loads(done.stdout)
    batches = [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    for name in ("here", "workers", "persistent", "spawned"):
        assert seen[name] == [batches, batches], name
    assert seen["stream"] == [[[0, 1, 2, 3]]] * 2
    assert seen["derived"] == [[[2 * i for i in batch] for batch in batches]] * 2
    assert seen["engine"] != "torch"
    assert seen["images"] == [[24, 3, 8, 8]]


def test_one_module_of_fastload_takes_the_class_from_torch():
    """Any other that is imported after the replacement would get FastLoader."""
    package = Path(fastload.__file__).parent
    takers = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch.utils.data")
        if any(name.name == "DataLoader" for name in node.names)
    }
    assert takers == {"_base/torch_loader.py"}


def test_patched_replaces_torchs_class_and_puts_it_back():
    with fastload.patched():
        for found in (torch.utils.data.DataLoader, torch.utils.data.dataloader.DataLoader):
            assert isinstance(found(Numbers(), 5), FastLoader)
    assert torch.utils.data.DataLoader is TORCH.DataLoader
    assert torch.utils.data.dataloader.DataLoader is TORCH.DataLoader


def test_patched_puts_it_back_after_an_error():
    with pytest.raises(ZeroDivisionError), fastload.patched():
        raise ZeroDivisionError
    assert torch.utils.data.DataLoader is TORCH.DataLoader


def test_a_module_that_had_imported_the_name_makes_fastloaders_too(monkeypatch):
    theirs = types.ModuleType("their_project.data")
    theirs.DataLoader = theirs.Loader = TORCH.DataLoader
    monkeypatch.setitem(sys.modules, "their_project.data", theirs)
    before = dict(vars(theirs))
    with fastload.patched():
        assert isinstance(theirs.DataLoader(Numbers()), FastLoader)
        assert isinstance(theirs.Loader(Numbers()), FastLoader)
        assert isinstance(DataLoader(Numbers()), FastLoader)  # this module's
    assert vars(theirs) == before
    assert DataLoader is TORCH.DataLoader


def test_a_module_that_imports_the_name_meanwhile_has_torchs_afterwards(monkeypatch):
    theirs = types.ModuleType("their_project.later")
    monkeypatch.setitem(sys.modules, "their_project.later", theirs)
    with fastload.patched():
        exec("from torch.utils.data import DataLoader", vars(theirs))
        assert isinstance(theirs.DataLoader(Numbers()), FastLoader)
    assert theirs.DataLoader is TORCH.DataLoader


def test_all_modules_hold_afterwards_what_they_held_before():
    def held():
        return {
            (module, name)
            for module, found in list(sys.modules.items())
            if isinstance(found, types.ModuleType)
            for name, value in list(vars(found).items())
            if value is TORCH.DataLoader
        }

    with fastload.patched():  # imports what it needs
        pass
    before = held()
    with fastload.patched():
        assert {module.partition(".")[0] for module, _ in held()} <= {"fastload"}
    assert held() == before


@pytest.mark.usefixtures("undone")
def test_install_lasts_until_uninstall_and_patched_within_it_changes_nothing():
    fastload.install()
    fastload.install()
    with fastload.patched():
        assert isinstance(DataLoader(Numbers()), FastLoader)
    assert isinstance(DataLoader(Numbers()), FastLoader)
    fastload.uninstall()
    assert DataLoader is TORCH.DataLoader
    fastload.uninstall()
    assert DataLoader is TORCH.DataLoader


def test_isinstance_holds_for_loaders_from_before_during_and_after():
    class Before(TORCH.DataLoader):
        pass

    before, derived = TORCH.DataLoader(Numbers()), Before(Numbers())
    with fastload.patched():

        class During(DataLoader):
            pass

        during = DataLoader(Numbers())
        loaders = (before, derived, during, During(Numbers()), FastLoader(Numbers()))
        assert all(isinstance(loader, torch.utils.data.DataLoader) for loader in loaders)
        assert all(issubclass(type(loader), DataLoader) for loader in loaders)
        assert not isinstance(during, During)
        assert not isinstance([], DataLoader)
    assert all(isinstance(loader, DataLoader) for loader in loaders)
    assert not isinstance(before, FastLoader)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_class_derived_meanwhile_that_skips_our_init_is_torchs(workers):
    with fastload.patched():

        class Own(DataLoader):
            """Sets itself up, as torchdata's StatefulDataLoader does."""

            def __init__(self, *given, **named):
                self.__dict__.update(vars(TORCH.DataLoader(*given, **named)))
                self.check_worker_number_rationality()

            def __iter__(self):
                return TORCH.DataLoader.__iter__(self)

        loader = Own(Numbers(), 5, num_workers=workers)
        assert len(loader) == 2
        assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_those_of_torch_while_it_is_replaced(workers):
    def batches():
        generator = torch.Generator().manual_seed(3)
        loader = DataLoader(Numbers(), 4, shuffle=True, num_workers=workers, generator=generator)
        return [[batch.tolist() for batch in loader] for _ in range(2)]

    expected = batches()
    with fastload.patched():
        assert batches() == expected


def test_a_loader_made_meanwhile_can_be_pickled_and_read_afterwards():
    with fastload.patched():
        data = pickle.dumps(DataLoader(range(6), 3))
    loader = pickle.loads(data)
    assert isinstance(loader, FastLoader)
    assert [batch.tolist() for batch in loader] == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_lightning_transformers_timm_and_accelerate_make_fastloaders_while_patched(tmp_path):
    pytest.importorskip("lightning")
    timm = pytest.importorskip("timm.data")
    transformers = pytest.importorskip("transformers.trainer")
    lightning = pytest.importorskip("lightning.pytorch.utilities.data")
    accelerate = pytest.importorskip("accelerate.data_loader")
    with fastload.patched():
        for module in (transformers, lightning, accelerate):
            assert issubclass(module.DataLoader, FastLoader), module
        trainer = transformers.Trainer(
            torch.nn.Linear(1, 1),
            transformers.TrainingArguments(str(tmp_path), report_to=[], use_cpu=True),
            train_dataset=Numbers(),
        )
        assert isinstance(trainer.get_train_dataloader(), FastLoader)
        images = timm.ImageDataset(_images(tmp_path))
        loader = timm.create_loader(
            images, (3, 32, 32), 2, num_workers=0, use_prefetcher=False, persistent_workers=False
        )
        assert isinstance(loader, FastLoader)
        assert [images.shape for images, _ in loader] == [(2, 3, 32, 32)]
    for module in (transformers, lightning, accelerate):
        assert module.DataLoader is TORCH.DataLoader, module


def _images(folder):
    from PIL import Image

    for name in ("a", "b"):
        (folder / "images" / name).mkdir(parents=True)
        Image.new("RGB", (40, 40)).save(folder / "images" / name / "0.png")
    return str(folder / "images")
