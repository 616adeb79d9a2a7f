"""TensorFlow's tf.data on the CPU, read as NumPy arrays."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
from torch.utils.dlpack import from_dlpack

from bench.loaders.base import Batch, Loader, Setting
from bench.workload import MEAN, STD, Workload

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


class TfData(Loader):
    """Images are decoded by tf.io (JPEG: only the crop), resized without antialiasing."""

    summary = "tf.data over the files, TensorFlow on the CPU"
    needs = ("tensorflow",)

    def settings(self, work: Workload) -> list[Setting]:
        return [
            {"num_parallel_calls": calls, "private_threads": work.threads, "prefetch": 2}
            for calls in (work.threads, 2 * work.threads)
        ]

    def refusal(self, work: Workload) -> str | None:
        return "tf.io decodes no WebP" if work.pixels == "webp" else None

    def open(self, work: Workload, setting: Setting) -> None:
        import tensorflow as tf

        tf.config.set_visible_devices([], "GPU")
        samples, _ = work.samples()
        paths = tf.constant([path for path, _ in samples])
        labels = tf.constant([label for _, label in samples], dtype=tf.int64)
        dataset = tf.data.Dataset.from_tensor_slices((paths, labels))
        if work.shuffled:
            dataset = dataset.shuffle(len(samples))
        dataset = dataset.map(
            _decoder(tf, work),
            num_parallel_calls=setting["num_parallel_calls"],
            deterministic=not work.shuffled,
        )
        dataset = dataset.batch(work.batch, drop_remainder=True).prefetch(setting["prefetch"])
        options = tf.data.Options()
        options.threading.private_threadpool_size = setting["private_threads"]
        self._loader = dataset.with_options(options)
        self._channels_last = work.memory_format == "channels_last"

    def epoch(self) -> Iterator[Batch]:
        for images, labels in self._loader:
            # DLPack shares the memory; TensorFlow's arrays are read-only as NumPy.
            pixels = from_dlpack(images)
            if self._channels_last:
                pixels = pixels.permute(0, 3, 1, 2)
            yield pixels, from_dlpack(labels)


def _decoder(tf: Any, work: Workload) -> Any:
    mean = 255 * np.array(MEAN, dtype=np.float32)
    scale = 1 / (255 * np.array(STD, dtype=np.float32))

    def decode(path: Any, label: Any) -> Any:
        data = tf.io.read_file(path)
        image = _geometry(tf, data, work)
        if work.recipe != "eval":
            image = tf.image.random_flip_left_right(image)
        if work.dtype == "uint8":
            image = tf.cast(tf.round(tf.clip_by_value(image, 0.0, 255.0)), tf.uint8)
        else:
            image = (tf.cast(image, tf.float32) - mean) * scale
        if work.memory_format == "contiguous":
            image = tf.transpose(image, (2, 0, 1))
        return image, label

    return decode


def _geometry(tf: Any, data: Any, work: Workload) -> Any:
    """Decode, crop and resize to float32 (or uint8 where nothing is resized) HWC."""
    size = work.size
    jpeg = work.pixels == "jpeg"
    decode = {"jpeg": tf.io.decode_jpeg, "png": tf.io.decode_png, "raw": tf.io.decode_bmp}
    if work.recipe == "train":
        image = None if jpeg else decode[work.pixels](data, channels=3)
        shape = tf.io.extract_jpeg_shape(data) if jpeg else tf.shape(image)
        shape = tf.concat([shape[:2], [3]], axis=0)
        begin, extent, _ = tf.image.sample_distorted_bounding_box(
            shape,
            tf.zeros((1, 0, 4)),
            min_object_covered=0.0,
            aspect_ratio_range=(3 / 4, 4 / 3),
            area_range=(0.08, 1.0),
            max_attempts=10,
            use_image_if_no_bounding_boxes=True,
        )
        if jpeg:
            window = tf.stack([begin[0], begin[1], extent[0], extent[1]])
            image = tf.image.decode_and_crop_jpeg(data, window, channels=3, dct_method="")
        else:
            image = tf.slice(image, begin, extent)
        return tf.reshape(tf.image.resize(image, (size, size)), (size, size, 3))
    image = decode[work.pixels](data, channels=3)
    if work.recipe == "small":
        image = tf.reshape(image, (size, size, 3))
        return tf.image.random_crop(tf.pad(image, [[4, 4], [4, 4], [0, 0]]), (size, size, 3))
    sides = tf.shape(image)[:2]
    scale = work.resize / tf.cast(tf.reduce_min(sides), tf.float64)
    resized = tf.maximum(tf.cast(scale * tf.cast(sides, tf.float64), tf.int32), work.resize)
    image = tf.image.resize(image, resized)
    top = tf.cast(tf.round((resized - size) / 2), tf.int32)
    return tf.reshape(tf.image.crop_to_bounding_box(image, top[0], top[1], size, size),
                      (size, size, 3))  # fmt: skip
