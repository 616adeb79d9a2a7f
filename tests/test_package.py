"""The package as a whole: its public names, what importing it costs, its version and its types."""

from __future__ import annotations

import concurrent.futures
import importlib
import importlib.metadata
import inspect
import json
import re
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import PIL.Image
import pytest
from packaging.requirements import Requirement

import fastload
from fastload import _native, errors

ROOT = Path(__file__).resolve().parent.parent

PUBLIC = {
    "Buckets",
    "ChecksumError",
    "DataError",
    "DecodeError",
    "FastLoader",
    "FastloadError",
    "InternalError",
    "MissingDependencyError",
    "Mix",
    "PackedDataset",
    "StoreError",
    "StoreNotFoundError",
    "TooManyErrors",
    "UnreadableError",
    "UsageError",
    "__version__",
    "append",
    "autotune",
    "concat",
    "info",
    "install",
    "open_store",
    "open_writer",
    "pack",
    "patched",
    "show",
    "trace",
    "uninstall",
    "unpack",
    "verify",
    "watch",
}
HEAVY = ("lmdb", "cv2", "PIL", "rich", "click", "torchvision", "h5py", "fsspec")


def run(code: str) -> str:
    """What ``code`` prints in a fresh interpreter."""
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=120
    )
    return done.stdout


# Parts of fastload that a loader does not need: one of a Dataset with code of its own, or one of
# images in host memory.
SOME = [
    "_engine.image_engine",
    "_sources.packed",
    "_sources.source",
    "_transforms.plan",
    "_transforms.recognise",
    "_transforms.geometry.draws",
    "storage.base",
    "storage.registry",
    "storage.table",
    "storage._column_store",
    "storage.folder",
    "_run.delivery.transfer",
    "_base.devices.cuda",
    "_engine.nvidia.dali_graph",
    "_run.explain",
    "_run.governor",
    "_transforms.geometry.warps",
    "_run.workers.dataset_epoch",
]


def test_the_public_names_are_exactly_these() -> None:
    assert set(fastload.__all__) == PUBLIC


def test_dir_shows_the_public_names() -> None:
    assert set(dir(fastload)) >= PUBLIC


def test_every_public_name_exists() -> None:
    for name in fastload.__all__:
        assert getattr(fastload, name) is not None


def test_every_public_object_has_a_docstring() -> None:
    bare = [
        name
        for name in fastload.__all__
        if name != "__version__" and not inspect.getdoc(getattr(fastload, name))
    ]
    assert bare == []


def test_every_public_method_has_a_docstring() -> None:
    classes = [
        value for name in fastload.__all__ if inspect.isclass(value := getattr(fastload, name))
    ]
    bare = [
        f"{cls.__name__}.{name}"
        for cls in classes
        for name, value in vars(cls).items()
        if not name.startswith("_") and inspect.isfunction(value) and not inspect.getdoc(value)
    ]
    assert bare == []


@pytest.fixture(scope="module")
def added() -> dict[str, object]:
    """What ``import fastload`` adds to a fresh interpreter that has imported torch."""
    # torch itself may import some of these modules; only what fastload adds counts.
    code = """
import json, os, sys, warnings, torch
modules, threads = set(sys.modules), len(os.listdir("/proc/self/task"))
environment, filters = dict(os.environ), list(warnings.filters)
import fastload
print(json.dumps({
    "modules": sorted(set(sys.modules) - modules),
    "threads": len(os.listdir("/proc/self/task")) - threads,
    "environment": dict(os.environ) != environment,
    "warnings": warnings.filters != filters,
}))
"""
    made: dict[str, object] = json.loads(run(code))
    return made


def test_importing_fastload_imports_nothing_heavy(added: dict[str, object]) -> None:
    modules = added["modules"]
    assert isinstance(modules, list) and "fastload" in modules
    assert [name for name in HEAVY if name in modules] == []


def test_importing_the_loader_imports_nothing_that_only_some_loaders_need() -> None:
    code = f"""
import json, sys
from fastload import FastLoader
print(json.dumps([name for name in {SOME} if f"fastload.{{name}}" in sys.modules]))
"""
    assert json.loads(run(code)) == []


@pytest.mark.native
def test_a_batch_of_images_of_a_dataset_imports_no_engine(tmp_path: Path) -> None:
    code = f"""
import json, os, sys
os.environ["FASTLOAD_DEFER"] = "1"
import PIL.Image
from torch.utils.data import Dataset
from torchvision import transforms
from fastload import FastLoader
class Own(Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        return transforms.ToTensor()(PIL.Image.open({str(tmp_path / "0.jpg")!r}).convert("RGB"))
next(iter(FastLoader(Own(), batch_size=4)))
print(json.dumps(sorted(name for name in sys.modules if name.startswith("fastload."))))
"""
    PIL.Image.new("RGB", (9, 7)).save(tmp_path / "0.jpg")
    imported = json.loads(run(code))
    assert "fastload._sources.deferred.batch" in imported
    others = {"_engine.base", "_engine.image_engine", "_engine.native", "_engine.cache.store"}
    others |= {"_sources.packed", "_transforms.geometry.draws", "_transforms.reader"}
    others |= {"_transforms.targets.joint", "storage.base", "storage.registry"}
    assert others & {name.removeprefix("fastload.") for name in imported} == set()


@pytest.mark.native
def test_a_batch_of_a_store_imports_nothing_that_only_some_loaders_need(tmp_path: Path) -> None:
    (tmp_path / "class").mkdir()
    PIL.Image.new("RGB", (9, 7)).save(tmp_path / "class" / "0.jpg")
    code = f"""
import json, sys
from torchvision import transforms as T
from fastload import FastLoader
transform = T.Compose([T.RandomResizedCrop(4), T.ToTensor()])
next(iter(FastLoader({str(tmp_path)!r}, transform=transform)))
print(json.dumps([name for name in sys.modules if name.startswith("fastload.")]))
"""
    imported = json.loads(run(code))
    assert "fastload._engine.native" in imported
    others = {"_engine.cache.store", "_engine.pillow", "_transforms.targets.moving"}
    others |= {"_transforms.buckets", "_transforms.geometry.bucket_crops"}
    others |= {"_transforms.geometry.geometry_log", "_transforms.pixels.fills"}
    others |= {"_transforms.in_integers", "_base.devices.mover", "_run.delivery.delivery"}
    assert others & {name.removeprefix("fastload.") for name in imported} == set()


def test_importing_fastload_starts_no_thread(added: dict[str, object]) -> None:
    assert added["threads"] == 0


def test_importing_fastload_changes_neither_environment_nor_warnings(
    added: dict[str, object],
) -> None:
    assert (added["environment"], added["warnings"]) == (False, False)


def test_the_version_is_the_installed_one() -> None:
    assert fastload.__version__ == importlib.metadata.version("torch-fastload")
    assert re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?(\.dev\d+)?", fastload.__version__)


def test_the_distribution_has_the_name_that_messages_tell_to_install() -> None:
    about = importlib.metadata.metadata("torch-fastload")
    assert errors.install("dali") == "pip install 'torch-fastload[dali]'"
    assert "dali" in (about.get_all("Provides-Extra") or [])
    assert about["Keywords"] and about["License"] and about["Summary"]
    commands = importlib.metadata.entry_points(group="console_scripts", name="fastload")
    assert {command.value for command in commands} == {"fastload.cli:main"}


def needs(extra: str = "") -> set[str]:
    """The distributions that the package requires on Linux with Python 3.14, or that ``extra``
    adds."""
    machine = {"sys_platform": "linux", "python_version": "3.14", "platform_machine": "x86_64"}
    lines = map(Requirement, importlib.metadata.requires("torch-fastload") or [])
    chosen: dict[str, set[str]] = {"": set(), extra: set()}
    for need in lines:
        for given, names in chosen.items():
            if need.marker is None or need.marker.evaluate({**machine, "extra": given}):
                names.add(need.name)
    return chosen[extra] - chosen[""] if extra else chosen[""]


def test_all_is_every_extra_of_users_but_the_dali_of_the_older_cuda() -> None:
    provided = importlib.metadata.metadata("torch-fastload").get_all("Provides-Extra") or []
    of_users = set(provided) - {"all", "test", "trainers", "check", "wheel", "docs", "dali"}
    assert of_users >= {"dali-cuda13", "datasets", "opencv", "remote", "zarr"}
    assert needs("all") == set().union(*map(needs, of_users))


def test_every_requirement_is_imported_by_the_package() -> None:
    texts = [path.read_text(encoding="utf-8") for path in ROOT.glob("fastload/**/*.py")]
    texts += [path.read_text(encoding="utf-8") for path in ROOT.glob("converters/*.py")]
    modules = {"pillow": "PIL", "google-crc32c": "google_crc32c"}
    for name in needs():
        module = modules.get(name, name)
        imports = rf"^\s*(import|from) {module}\b|(import_module|needed)\(\s*\"{module}"
        assert any(re.search(imports, text, re.MULTILINE) for text in texts), name


def test_no_message_and_no_document_names_the_distribution_of_another_project() -> None:
    texts = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]
    texts += [*ROOT.glob("fastload/**/*.py"), *ROOT.glob("converters/*.py")]
    wrong = re.compile(r"pip install[^#\n]*[ '\"]fastload\b|(?<!torch-)fastload\[\w")
    found = [path.name for path in texts if wrong.search(path.read_text(encoding="utf-8"))]
    assert found == []


def test_the_changelog_has_an_entry_for_this_version() -> None:
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == fastload.__version__


def test_type_checkers_find_the_annotations() -> None:
    assert (Path(fastload.__file__).parent / "py.typed").is_file()


def test_a_folder_of_the_same_name_does_not_hide_the_package(tmp_path: Path) -> None:
    # As where a script lies beside a clone, and where an editable install is an import hook.
    (tmp_path / "fastload").mkdir()
    (tmp_path / "script.py").write_text("from fastload.errors import UsageError")
    subprocess.run([sys.executable, tmp_path / "script.py"], check=True, timeout=60)


def test_the_converters_are_a_part_of_the_package() -> None:
    assert (
        run("import fastload.converters as c; print(c.__name__)").strip() == "fastload.converters"
    )


@pytest.mark.native
@pytest.mark.parametrize("first", ["torchvision", "cv2", "PIL.Image"])
def test_the_core_loads_after_a_package_that_brings_its_own_libjpeg(first: str) -> None:
    assert run(f"import {first}; import fastload._native._core as core; print(core.simd())").strip()


@pytest.mark.native
def test_threads_that_need_the_core_first_all_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def slowly(name: str) -> ModuleType:
        time.sleep(0.05)
        return found(name)

    found = importlib.import_module
    monkeypatch.setattr(_native, "_tried", False)
    monkeypatch.setattr(_native, "_module", None)
    monkeypatch.setattr(_native.importlib, "import_module", slowly)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        cores = [task.result() for task in [pool.submit(_native.load) for _ in range(4)]]
    assert None not in cores
