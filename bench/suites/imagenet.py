"""imagenet-train, imagenet-eval and raw-train: photos to 224 x 224; small-images: 32 x 32."""

from __future__ import annotations

from bench.report import Row
from bench.suites.base import Options, Suite, Variant
from bench.suites.race import race


class ImagenetTrain(Suite):
    name = "imagenet-train"
    summary = "photos: RandomResizedCrop(224), flip, normalise; batch 64, shuffled"
    images = "photos"
    recipe = "train"
    variants = {
        "float32": Variant(),
        "uint8": Variant(dtype="uint8"),
        "channels_last": Variant(memory_format="channels_last"),
        "dct": Variant(only_dct=True),
        "dct-uint8": Variant(dtype="uint8", only_dct=True),
        "png": Variant(pixels="png"),
        "webp": Variant(pixels="webp"),
    }

    def run(self, variant: str, options: Options) -> list[Row]:
        work = self.work(variant, options, images=self.images, recipe=self.recipe)
        return race(work, self.loaders(variant, options), options)


class ImagenetEval(ImagenetTrain):
    name = "imagenet-eval"
    summary = "JPEG photos: Resize(256), CenterCrop(224), normalise; batch 64, in order"
    recipe = "eval"
    variants = {
        "float32": Variant(),
        "uint8": Variant(dtype="uint8"),
        "channels_last": Variant(memory_format="channels_last"),
        "dct": Variant(only_dct=True),
    }


class RawTrain(ImagenetTrain):
    name = "raw-train"
    summary = "the training workload on raw pixels, 256 on the shorter side"
    variants = {
        "float32": Variant(pixels="raw"),
        "uint8": Variant(pixels="raw", dtype="uint8"),
        "channels_last": Variant(pixels="raw", memory_format="channels_last"),
    }


class SmallImages(ImagenetTrain):
    """The cost of each image decides."""

    name = "small-images"
    summary = "32x32 images: RandomCrop(32, padding=4), flip, normalise; batch 256, shuffled"
    images = "small"
    variants = {
        "jpeg": Variant(),
        "raw": Variant(pixels="raw"),
        "raw-channels_last": Variant(pixels="raw", memory_format="channels_last"),
        "dct": Variant(only_dct=True),
        "png": Variant(pixels="png"),
        "webp": Variant(pixels="webp"),
    }
