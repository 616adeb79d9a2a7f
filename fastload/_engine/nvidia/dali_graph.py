"""DALI's pipeline: JPEG files and the geometry of each in, uint8 images out.

The graph draws no random numbers: crop, size, window and flip of each image are inputs, drawn by
fastload, so that the crops are those of the other engines.

Note [A spoiled pipeline]
    DALI fails a batch as a whole: one broken image loses the outputs of its batch and makes the
    pipeline unusable. Then it is closed, another one is built, and the batches after the broken one
    go in again. Their inputs are kept until their outputs are complete, as they must be anyway,
    because DALI reads them in place (``no_copy``).

Note [Whole images on a GPU]
    There, whole images are decoded and cut afterwards. nvImageCodec lets only nvJPEG 13.2 and newer
    decode boxes of images with subsampled colours by libjpeg's upsampling; else DALI decodes them
    on the CPU without a message. In a program with torchvision there is an older one: its wheels
    bring nvJPEG 13.0 (CUDA 12's have 12) under the name by which DALI asks for it.
"""

from __future__ import annotations

import collections
import ctypes
import dataclasses
import importlib
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from torch.utils.dlpack import from_dlpack

from ..._base.devices.cuda import on_stream
from ...errors import MissingDependencyError, UsageError, install

DEPTH = 2
"""Batches in the pipeline at a time, DALI's default: one is decoded on the host and copied while
the other is finished on the device."""

# By resample/resample.h's numbers; Pillow's box and Hamming filters are not among DALI's.
FILTERS = {2: "INTERP_LINEAR", 4: "INTERP_CUBIC", 5: "INTERP_LANCZOS3"}

# What DALI raises for errors of its operators, out of memory included.
_FAILURES = (RuntimeError, ValueError, TypeError, IndexError, MemoryError)

# The process in which DALI runs, and its pipelines. A forked child has none of DALI's threads, and
# DALI waits for them for ever: when a pipeline is built there, when one of the parent's is closed,
# and when the child ends.
_process: int | None = None
_pipelines = weakref.WeakSet["_Pipeline"]()


class _Outputs(Protocol):
    """DALI's list of tensors, one per image."""

    def as_tensor(self) -> object:
        """All of them as one tensor, where they have one shape."""

    def as_array(self) -> np.ndarray:
        """All of them as one array in host memory."""


class _Pipeline(Protocol):
    """What is used of ``nvidia.dali.Pipeline``; with ``_pipe`` None, it closes nothing."""

    _pipe: object

    def schedule_run(self) -> None: ...
    def reset(self) -> None: ...
    def share_outputs(self, *, cuda_stream: object) -> tuple[_Outputs, _Outputs]: ...
    def release_outputs(self) -> None: ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class PipelineOptions:
    """What a pipeline is built for.

    Attributes:
        device_id: of the GPU; None: DALI's CPU back end.
        threads: of the host, at least 1.
        filter: of the resize, one of ``FILTERS``; None: nothing is resized.
        windowed: a window is cut out of what was resized.
        fill: level of each channel outside the resized image.
        whole: decode whole images and cut them afterwards: Note [Whole images on a GPU].
    """

    device_id: int | None
    threads: int
    filter: int | None
    windowed: bool
    fill: tuple[int, int, int]
    whole: bool = False

    @property
    def inputs(self) -> tuple[str, ...]:
        """Which of ``PipelineBatch.inputs`` go in: DALI warns about inputs that it does not use."""
        resize, window = ("size",), ("window", "out")
        return (
            "encoded",
            "corner",
            "sides",
            "flip",
            *resize * (self.filter is not None),
            *window * self.windowed,
        )


Inputs = dict[str, np.ndarray | list[np.ndarray]]
"""What goes into the pipeline, by name; see ``PipelineBatch.inputs``."""


@dataclasses.dataclass(eq=False)
class PipelineBatch:
    """One batch on its way through the pipeline.

    Attributes:
        inputs: "encoded", the files as n uint8 arrays; and of each image "corner" and "sides", x, y
            and w, h of the box; "size", h, w that it is resized to; "window" and "out", x, y and
            w, h of the window; "flip". int32, "size" float32. DALI reads them in place until the
            images are complete.
        images: uint8 (n, h, w, 3) in DALI's memory, which is valid as long as the tensor lives.
        shapes: int64 (n, 3), height, width and channels of each file.
        failure: why there are no images.
        wanted: False drops the outputs when they come.
        done: the work is finished, failed or dropped.
    """

    inputs: Inputs
    images: torch.Tensor | None = None
    shapes: np.ndarray | None = None
    failure: BaseException | None = None
    wanted: bool = True
    done: bool = False


class Graph:
    """The pipeline, built when it is needed and built again when a batch has spoiled it.

    Safe to use from several threads. Batches come out in the order in which they were put in. Their
    outputs are used in ``stream``; None on the CPU.
    """

    def __init__(self, build: PipelineOptions, stream: torch.cuda.Stream | None) -> None:
        self._build = build
        self._stream = stream
        self._lock = threading.Lock()
        self._waiting: collections.deque[PipelineBatch] = collections.deque()
        self._running: collections.deque[PipelineBatch] = collections.deque()
        self._pipe: _Pipeline | None = None
        self._most = 0  # images that the pipeline takes in a batch
        self.builds = 0
        """Pipelines built so far. Constant unless one was spoiled or a batch was larger."""

    def put(self, work: PipelineBatch) -> None:
        """Start ``work``, or queue it until the pipeline has a free place."""
        with self._lock:
            self._waiting.append(work)
            self._schedule()

    def take(self, work: PipelineBatch) -> None:
        """Wait until ``work`` is done."""
        with self._lock:
            while not work.done:
                self._finish_first()
                self._schedule()

    def drop(self, work: PipelineBatch) -> None:
        """``work`` will not be taken. From any thread, without waiting."""
        work.wanted = False

    def __del__(self) -> None:
        self._shut()  # before the batches' files go: DALI reads them in place

    def _shut(self) -> None:
        pipe, self._pipe = self._pipe, None
        del pipe  # its finalizer ends its threads

    def _schedule(self) -> None:
        """Start the queued batches for which the pipeline has a place."""
        while self._waiting and len(self._running) < DEPTH:
            if not self._waiting[0].wanted:
                _settle(self._waiting.popleft())
                continue
            n = len(self._waiting[0].inputs["encoded"])
            if self._pipe is not None and n > self._most:
                if self._running:
                    return  # its results first
                self._shut()
            if self._pipe is None:
                self._most = max(n, self._most)
                self._pipe = _pipeline(self._build, self._most, _source_of(self))
                self.builds += 1
            # Takes as many from _next as it has places for. That ends its "epoch": reset.
            self._pipe.schedule_run()
            self._pipe.reset()

    def _next(self) -> tuple[object, ...]:
        """The inputs of the next batch; DALI calls it."""
        if not self._waiting or len(self._running) >= DEPTH:
            raise StopIteration
        work = self._waiting[0]
        if not work.wanted or len(work.inputs["encoded"]) > self._most:
            raise StopIteration
        self._running.append(self._waiting.popleft())
        return tuple([work.inputs[name] for name in self._build.inputs])

    def _finish_first(self) -> None:
        """Wait for the batch that was started first."""
        work = self._running.popleft()
        work.failure = self._take_outputs(work)
        if work.failure is not None:
            self._waiting.extendleft(reversed(self._running))
            self._running.clear()
            self._shut()
        _settle(work)

    def _take_outputs(self, work: PipelineBatch) -> BaseException | None:
        """Take the outputs of ``work`` from the pipeline; returns why there are none.

        The error has no traceback: its frames would keep the spoiled pipeline, with its threads and
        its memory on the GPU, beside the one that is built next.
        """
        pipe = self._pipe
        assert pipe is not None, "a batch is running"
        try:
            images, shapes = pipe.share_outputs(cuda_stream=self._stream)
            if work.wanted:
                work.images = self._as_tensor(images)
                work.shapes = np.array(shapes.as_array())
            pipe.release_outputs()
        except _FAILURES as error:
            return error.with_traceback(None)
        return None

    def _as_tensor(self, images: _Outputs) -> torch.Tensor:
        if self._stream is None:
            return from_dlpack(images.as_tensor())
        with on_stream(self._stream):
            return from_dlpack(images.as_tensor())


def _source_of(graph: Graph) -> Callable[[], tuple[object, ...]]:
    """``graph._next`` for a pipeline of its own, which ends with it: no circle keeps both."""
    owner = weakref.ref(graph)

    def source() -> tuple[object, ...]:
        graph = owner()
        if graph is None:
            raise StopIteration
        return graph._next()

    return source


def _settle(work: PipelineBatch) -> None:
    """Mark ``work`` as done on the host.

    On a GPU its images may still be made from its files: these stay as long as the work does.
    """
    if work.images is None:
        work.inputs = {}
    work.done = True


def absent() -> str | None:
    """Why DALI cannot be used here, or None."""
    try:
        importlib.import_module("nvidia.dali")
    except ImportError as error:
        return f"nvidia-dali is not installed ({error})"
    return None


def missing() -> MissingDependencyError:
    """The error where DALI is needed and missing."""
    return MissingDependencyError(
        f"engine='dali' needs NVIDIA DALI: {absent()}; {install('dali')} (CUDA 12) or "
        f"{install('dali-cuda13')}"
    )


def version() -> str:
    """The version of DALI that is installed."""
    return str(importlib.import_module("nvidia.dali").__version__)


def _pipeline(
    build: PipelineOptions, batch: int, source: Callable[[], tuple[object, ...]]
) -> _Pipeline:
    """A pipeline that calls ``source`` for its inputs.

    Raises UsageError in a forked child of a process that uses DALI, and where DALI makes none.
    """
    global _process
    if _process is None:
        os.register_at_fork(after_in_child=_forget_pipelines)
    elif _process != os.getpid():
        raise UsageError(
            "DALI does not survive a fork, and the parent of this process has used it: start the "
            "child by 'spawn', or decode on the CPU there (engine='native')"
        )
    _process = os.getpid()
    try:
        built = _built(build, batch, source)
    except _FAILURES as error:
        raise UsageError(
            f"DALI {version()} cannot make a pipeline on {_device_name(build)} "
            f"({' '.join(str(error).split())}): a GPU needs a driver that is new enough and free "
            "memory; or leave out engine='dali'"
        ) from error
    _pipelines.add(built)
    return built


def _forget_pipelines() -> None:
    """In a forked child: nothing closes the parent's pipelines there, nor does DALI at its exit."""
    for pipeline in list(_pipelines):
        # What it wraps has a destructor of its own, which must never run either.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(pipeline._pipe))
        pipeline._pipe = None
    _pipelines.clear()


def _device_name(build: PipelineOptions) -> str:
    return "the CPU" if build.device_id is None else f"cuda:{build.device_id}"


def _built(
    build: PipelineOptions, batch: int, source: Callable[[], tuple[object, ...]]
) -> _Pipeline:
    dali: Any = importlib.import_module("nvidia.dali")
    fn, types = dali.fn, dali.types
    pipe = dali.Pipeline(
        batch_size=batch,
        num_threads=build.threads,
        device_id=build.device_id,
        seed=0,
        prefetch_queue_depth=DEPTH,
        exec_dynamic=True,
    )
    with pipe:
        other = {"encoded": types.UINT8, "size": types.FLOAT}
        dtypes = {name: other.get(name, types.INT32) for name in build.inputs}
        nodes = fn.external_source(
            source=source,
            num_outputs=len(dtypes),
            batch=True,
            no_copy=True,
            dtype=list(dtypes.values()),
            ndim=[0 if name == "flip" else 1 for name in dtypes],
        )
        inputs = dict(zip(dtypes, nodes))
        encoded = inputs["encoded"]
        shapes = fn.peek_image_shape(encoded, adjust_orientation=False, image_type=types.ANY_DATA)
        box = {"start": inputs["corner"], "shape": inputs["sides"], "axis_names": "WH"}
        how = {
            "device": "cpu" if build.device_id is None else "mixed",
            # Pillow's choices: neither is DALI's default.
            "adjust_orientation": False,
            "jpeg_fancy_upsampling": True,
            "output_type": types.RGB,
        }
        if build.whole:
            images = fn.slice(fn.decoders.image(encoded, **how), **box)
        else:
            images = fn.decoders.image_slice(encoded, **how, **box)
        if build.filter is not None:
            images = fn.resize(
                images,
                size=inputs["size"],
                interp_type=getattr(types, FILTERS[build.filter]),
                antialias=True,
            )
        if build.windowed:
            images = fn.slice(
                images,
                start=inputs["window"],
                shape=inputs["out"],
                axis_names="WH",
                out_of_bounds_policy="pad",
                fill_values=[float(level) for level in build.fill],
            )
        images = fn.flip(images, horizontal=inputs["flip"])
        pipe.set_outputs(images, shapes)
    pipe.build()
    built: _Pipeline = pipe
    return built
