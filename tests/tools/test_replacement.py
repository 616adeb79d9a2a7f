"""FastLoader in torch's place: by hand, by ``install`` and by ``patched``, which are undone."""

from __future__ import annotations

import abc
import ast
import copy
import inspect
import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.utils.data
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler
from torch.utils.data.datapipes.iter import IterableWrapper
from torchvision.datasets import ImageFolder

import fastload
from fastload import FastLoader

AT_FIRST = dict(vars(DataLoader))


@pytest.fixture
def undone():
    yield
    fastload.uninstall()
    DataLoader.__init__ = AT_FIRST["__init__"]


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


def changes():
    """What torch's class has now that it did not have when this module was imported.

    ``copyreg`` keeps ``__slotnames__`` on any class whose object is copied or pickled.
    """
    now = {name for name, value in vars(DataLoader).items() if AT_FIRST.get(name) is not value}
    return now - {"__slotnames__"}


def test_patched_makes_fastloaders_of_torchs_class_and_then_no_more():
    with fastload.patched():
        assert torch.utils.data.DataLoader is DataLoader
        assert type(DataLoader(Numbers(), 5)) is FastLoader
        assert type(DataLoader[torch.Tensor](Numbers(), 5)) is FastLoader
    assert type(DataLoader(Numbers(), 5)) is DataLoader


def test_it_exchanges_two_methods_and_puts_them_back_also_after_an_error():
    with pytest.raises(ZeroDivisionError), fastload.patched():
        assert changes() == {"__init__", "__init_subclass__"}
        raise ZeroDivisionError
    assert not changes()


def test_signatures_stay_the_same():
    class Own(DataLoader):
        def __init__(self, path, *, speed=1.0):
            super().__init__(path)

    signatures = [inspect.signature(kind) for kind in (DataLoader, Own)]
    with fastload.patched():
        assert [inspect.signature(kind) for kind in (DataLoader, Own)] == signatures


def test_what_code_that_reads_parameters_finds_stays_the_same():
    """Public scripts pass on only those arguments that ``DataLoader.__init__`` names."""

    def found():
        init = DataLoader.__init__
        code = init.__code__
        parameters = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        return parameters, init.__defaults__, init.__kwdefaults__, inspect.getfullargspec(init)

    expected = found()
    with fastload.patched():
        assert found() == expected
        loader = DataLoader(Numbers(), 5, num_workers=0, drop_last=True, seed=1)
        assert (loader.batch_size, loader.drop_last, loader.seed) == (5, True, 1)


@pytest.mark.parametrize("workers", [{}, {"num_workers": 0}])
def test_workers_that_are_not_given_are_left_to_fastload(workers, photos):
    expected = FastLoader(ImageFolder(photos), **workers).num_workers
    with fastload.patched():
        assert DataLoader(ImageFolder(photos), **workers).num_workers == expected


@pytest.mark.usefixtures("undone")
def test_what_others_wrap_around_init_meanwhile_they_may_put_back_later():
    with fastload.patched():
        ours = DataLoader.__init__
        DataLoader.__init__ = lambda *given, **named: ours(*given, **named)
        assert type(DataLoader(Numbers())) is FastLoader
    assert type(DataLoader(Numbers())) is DataLoader
    DataLoader.__init__ = ours
    assert type(DataLoader(Numbers())) is DataLoader
    with fastload.patched():
        assert type(DataLoader(Numbers())) is FastLoader


@pytest.mark.usefixtures("undone")
def test_install_lasts_until_uninstall_and_patched_within_it_changes_nothing():
    fastload.install()
    fastload.install()
    with fastload.patched():
        assert isinstance(DataLoader(Numbers()), FastLoader)
    assert isinstance(DataLoader(Numbers()), FastLoader)
    fastload.uninstall()
    assert not changes()
    fastload.uninstall()
    assert not changes()


def test_isinstance_holds_for_loaders_from_before_during_and_after():
    class Before(DataLoader):
        pass

    before, derived = DataLoader(Numbers()), Before(Numbers())
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


class Named(DataLoader):
    """Calls torch's methods by the class's name."""

    def __init__(self, size):
        self.size = size
        DataLoader.__init__(self, range(size), 4)

    def __iter__(self):
        return DataLoader.__iter__(self)

    def __len__(self):
        return DataLoader.__len__(self)


class Above(DataLoader):
    def __init__(self, size):
        super(Above, self).__init__(range(size), 4)  # noqa: UP008 - as old code does

    def __iter__(self):
        return super(Above, self).__iter__()  # noqa: UP008


EARLY = {"itself": DataLoader(range(8), 4), "by name": Named(8), "by super": Above(8)}


@pytest.mark.parametrize("name", EARLY)
def test_loaders_and_classes_from_before_are_as_they_were(name):
    early, expected = EARLY[name], [[0, 1, 2, 3], [4, 5, 6, 7]]
    with fastload.patched():
        loaders = [early, pickle.loads(pickle.dumps(early)), copy.deepcopy(early), copy.copy(early)]
        if name != "itself":
            made = type(early)(8)
            loaders += [made, pickle.loads(pickle.dumps(made))]
        for loader in loaders:
            assert type(loader) is type(early)
            assert not isinstance(loader, FastLoader)
            assert len(loader) == 2
            assert [batch.tolist() for batch in loader] == expected


def _derived():
    """Classes that are derived now."""

    class ByName(DataLoader):
        def __init__(self, size):
            DataLoader.__init__(self, range(size), 4)

        def __iter__(self):
            return DataLoader.__iter__(self)

    class BySuper(DataLoader):
        def __init__(self, size):
            super().__init__(range(size), 4)

    class Typed(DataLoader[int]):
        def __init__(self, size):
            super().__init__(range(size), 4)

    class Abstract(DataLoader, abc.ABC):
        __slots__ = ("extra",)

        def __init__(self, size):
            super(DataLoader, self).__init__()
            super().__init__(range(size), 4)

    class Mixed(Named, DataLoader):
        pass

    class Twice(BySuper):
        pass

    return ByName, BySuper, Typed, Abstract, Mixed, Twice


@pytest.mark.parametrize("number", range(6))
def test_classes_that_are_derived_meanwhile_are_fastloaders(number):
    with fastload.patched():
        kind = _derived()[number]
        loader = kind(8)
    assert type(loader) is kind
    assert isinstance(loader, FastLoader)
    assert "workers" in loader.explain()
    for made in (loader, kind(8)):
        assert [batch.tolist() for batch in made] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert loader.state_dict()["epoch"] == 1


OTHERS = {"device": "cuda:7", "seed": 5, "cache": {}, "shard": True, "engine": "theirs", "tuned": 1}
OTHERS |= {"batch_transform": print, "transform": print, "on_error": 3, "dtype": "bf16"}
OTHERS |= {"_config": {}, "_cursor": 0, "_resources": [], "_iteration": 0, "_own": 1, "_given": 2}


@pytest.mark.parametrize("before", [False, True])
def test_what_a_class_derived_meanwhile_calls_as_fastload_calls_an_argument_is_its_own(before):
    with fastload.patched():

        class Theirs(DataLoader):
            def __init__(self, dataset, **named):
                if before:
                    vars(self).update(OTHERS)
                super().__init__(dataset, **named)
                if not before:
                    vars(self).update(OTHERS)

        loader = Theirs(range(4), batch_size=2)
    for one in loader, copy.copy(loader):
        assert len(one) == 2
        assert [batch.tolist() for batch in one] == [[0, 1], [2, 3]]
        assert {name: getattr(one, name) for name in OTHERS} == OTHERS


def test_what_a_class_derived_meanwhile_defines_is_its_own():
    with fastload.patched():

        class Theirs(DataLoader):
            device, seed = "mine", "also"

        loader = Theirs(range(4), batch_size=2)
    assert (loader.device, loader.seed) == ("mine", "also")
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3]]


def test_what_a_class_derived_from_fastloader_sets_is_read():
    class Ours(fastload.FastLoader):
        pass

    loader = Ours(range(4), batch_size=2)
    loader.batch_transform = len
    assert list(loader) == [2, 2]


def test_what_a_program_sets_on_a_loader_made_meanwhile_is_its_own():
    with fastload.patched():
        loader = DataLoader(range(4), 2)
    vars(loader).update(OTHERS)
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3]]


def test_a_class_derived_meanwhile_from_an_earlier_one_is_torchs():
    with fastload.patched():

        class Later(Above):
            pass

        assert not isinstance(Later(8), FastLoader)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_class_derived_meanwhile_that_skips_our_init_is_torchs(workers):
    with fastload.patched():

        class Own(DataLoader):
            """Sets itself up, as torchdata's StatefulDataLoader does."""

            def __init__(self, *given, **named):
                self.__dict__.update(vars(DataLoader(*given, **named)))
                self.check_worker_number_rationality()

            def __iter__(self):
                return DataLoader.__iter__(self)

        loader = Own(Numbers(), 5, num_workers=workers)
        assert len(loader) == 2
        assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]


def test_a_class_derived_meanwhile_that_calls_no_init_is_torchs():
    with fastload.patched():

        class Around(DataLoader):
            """Wraps another loader, as catalyst's do."""

            def __init__(self, loader):
                self.loader = loader

            def __iter__(self):
                return iter(self.loader)

        loader = Around(DataLoader(Numbers(), 5))
    assert repr(loader) == object.__repr__(loader)
    assert loader._repr_html_() is None
    loader.set_epoch(1)  # trainers call it where there is one
    with pytest.warns(UserWarning, match=r"calls DataLoader\.__init__"):
        state = loader.state_dict()
    with pytest.warns(UserWarning, match="begins anew"):
        loader.load_state_dict(state)
    copied = copy.copy(loader)
    assert type(copied) is Around
    assert [len(batch) for batch in copied] == [5, 5]


class NoState(Sampler):
    """Its state is for a trainer of its own."""

    def __iter__(self):
        return iter(range(10))

    def state_dict(self):
        raise NotImplementedError

    def load_state_dict(self, state):
        raise NotImplementedError


@pytest.mark.parametrize(
    "made",
    [
        lambda: DataLoader(IterableWrapper(list(range(10))), 5),
        lambda: DataLoader(Numbers(), 5, sampler=NoState()),
    ],
    ids=["datapipe", "sampler"],
)
def test_a_trainer_may_save_the_state_of_each_loader_made_meanwhile(made):
    with fastload.patched():
        loader, again = made(), made()
    batches = [batch.tolist() for batch in loader]
    with pytest.warns(UserWarning, match="state_dict: "):
        state = json.loads(json.dumps(loader.state_dict()))
    with pytest.warns(UserWarning, match="had no state .* begins anew"):
        again.load_state_dict(state)
    assert [batch.tolist() for batch in again] == batches
    with pytest.raises(fastload.UsageError, match="had no state"):
        FastLoader(Numbers(), 5).load_state_dict(state)


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
            assert isinstance(module.DataLoader(Numbers()), FastLoader), module
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
        assert not isinstance(module.DataLoader(Numbers()), FastLoader), module


@pytest.mark.long
def test_lightning_makes_a_class_derived_meanwhile_again():
    data = pytest.importorskip("lightning.fabric.utilities.data")
    pytorch = pytest.importorskip("lightning.pytorch.utilities.data")
    with fastload.patched():

        class Clips(DataLoader):
            def __init__(self, clips, *given, **named):
                self.clips = clips
                super().__init__(clips, *given, **named)

        with data._replace_dunder_methods(DataLoader, "dataset"):  # as around train_dataloader()
            loader = Clips([1, 2, 3], batch_size=2)
        made = pytorch._update_dataloader(loader, loader.sampler)
    assert type(made) is Clips
    assert [batch.tolist() for batch in made] == [[1, 2], [3]]


def _images(folder):
    from PIL import Image

    for name in ("a", "b"):
        (folder / "images" / name).mkdir(parents=True)
        Image.new("RGB", (40, 40)).save(folder / "images" / name / "0.png")
    return str(folder / "images")
