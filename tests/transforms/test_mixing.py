"""MixUp and CutMix in place: torchvision's values, random numbers, checks and labels."""

from __future__ import annotations

import pytest
import torch
from torchvision.transforms import v2

import releases
from batches import EVAL
from fastload import FastLoader
from fastload._transforms.pixels import mixing
from native_core import core
from sides import assert_same

pytestmark = pytest.mark.native

CLASSES = 3


def images_of(shape, order=torch.contiguous_format, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(shape, generator=generator) * 100
    return images.to(dtype).contiguous(memory_format=order)


def assert_equal(found, expected):
    """The same values; torchvision's MixUp makes channels_last images contiguous, ours does not."""
    (images, labels), (wanted, targets) = found, expected
    assert_same((images.contiguous(), labels), (wanted.contiguous(), targets))


def labels_of(n):
    return torch.arange(n) % CLASSES


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(
    "shape", [(5, 3, 17, 23), (1, 3, 9, 8), (2, 1, 8, 31), (4, 3, 1, 1), (7, 3, 1, 40)]
)
@pytest.mark.parametrize("mix", [v2.MixUp, v2.CutMix])
def test_images_and_labels_are_torchvisions(mix, shape, order):
    transform = mix(num_classes=CLASSES, alpha=0.7)
    in_place = mixing.in_place(transform)
    for seed in range(12):
        images, labels = images_of(shape, order, seed=seed), labels_of(shape[0])
        address = images.data_ptr()
        torch.manual_seed(seed)
        expected = transform(images.clone(), labels)
        after = torch.rand(1)
        torch.manual_seed(seed)
        found = in_place(images, labels)
        assert torch.equal(torch.rand(1), after)  # the same number of random numbers was drawn
        assert_equal(found, expected)
        assert found[0].data_ptr() == address
        assert found[0].is_contiguous(memory_format=order)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
def test_cutmix_moves_values_of_any_kind(dtype, order):
    transform = v2.CutMix(num_classes=CLASSES)
    for seed in range(8):
        images = images_of((4, 3, 12, 15), order, torch.float32, seed).abs().to(dtype)
        torch.manual_seed(seed)
        expected = transform(images.clone(memory_format=torch.preserve_format), labels_of(4))
        torch.manual_seed(seed)
        assert_same(mixing.in_place(transform)(images, labels_of(4)), expected)


def test_what_the_core_does_not_mix_is_torchvisions_and_elsewhere():
    transform = v2.MixUp(num_classes=CLASSES)
    for images in (
        images_of((4, 3, 6, 5), dtype=torch.float16),
        images_of((4, 3, 12, 5))[:, :, ::2],
        images_of((4, 3, 6, 10))[..., :5],
    ):
        before = images.clone()
        torch.manual_seed(1)
        expected = transform(images, labels_of(4))
        torch.manual_seed(1)
        assert_same(mixing.in_place(transform)(images, labels_of(4)), expected)
        assert torch.equal(images, before)


def test_choices_and_compositions_draw_as_torchvision_does():
    choice = v2.RandomChoice(
        [v2.MixUp(num_classes=CLASSES), v2.CutMix(num_classes=CLASSES)], p=[0.4, 0.6]
    )
    both = v2.Compose([v2.MixUp(num_classes=CLASSES), v2.CutMix()])
    for transform in (choice, both):
        in_place = mixing.in_place(transform)
        for seed in range(10):
            images = images_of((4, 3, 10, 9), seed=seed)
            torch.manual_seed(seed)
            expected = transform(images.clone(), labels_of(4))
            torch.manual_seed(seed)
            assert_same(in_place(images, labels_of(4)), expected)


class Louder(v2.MixUp):
    def transform(self, inpt, params):
        return super().transform(inpt, params) * 2


def test_only_torchvisions_own_are_taken_for_it():
    hooked = v2.MixUp(num_classes=CLASSES)
    hooked.register_forward_hook(lambda *_: None)
    patched = v2.CutMix(num_classes=CLASSES)
    setattr(patched, releases.TRANSFORM, lambda inpt, params: inpt)
    some = v2.RandomChoice([v2.MixUp(num_classes=CLASSES), v2.RandomHorizontalFlip()])
    assert mixing.in_place(v2.MixUp(num_classes=CLASSES)) is not None
    for transform in (Louder(num_classes=CLASSES), hooked, patched, some, lambda batch: batch):
        assert mixing.in_place(transform) is None


def test_a_wrong_batch_is_torchvisions_error():
    in_place = mixing.in_place(v2.MixUp())
    with pytest.raises(ValueError, match="num_classes must be passed"):
        in_place(images_of((4, 3, 6, 5)), labels_of(4))
    with pytest.raises(ValueError, match="does not match the batch size"):
        mixing.in_place(v2.CutMix(num_classes=CLASSES))(images_of((4, 3, 6, 5)), labels_of(5))


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
def test_a_loader_gives_what_torchvision_makes_of_its_batches(store, order):
    transform = v2.RandomChoice([v2.MixUp(num_classes=CLASSES), v2.CutMix(num_classes=CLASSES)])

    def loader(**more):
        return FastLoader(
            store, 6, shuffle=True, seed=2, transform=EVAL, memory_format=order, **more
        )

    mixed = loader(batch_transform=transform)
    assert "batch_transform: RandomChoice, in the batch's own memory" in mixed.explain()
    plain = loader(batch_transform=lambda batch: transform(batch))
    assert "batch_transform: <lambda>, in host memory" in plain.explain()
    for _ in range(2):
        found, expected = list(mixed), list(plain)
        assert len(found) == len(expected) > 1
        for ours, theirs in zip(found, expected, strict=True):
            assert_equal(ours, theirs)
        assert all(images.is_contiguous(memory_format=order) for images, _ in found)


def test_batches_that_somebody_else_may_hold_stay_as_they_are(store):
    mix = v2.CutMix(num_classes=CLASSES)
    kept = []

    def keeping(samples):
        kept.append(torch.utils.data.default_collate(samples))
        return kept[-1]

    loader = FastLoader(store, 6, transform=EVAL, collate_fn=keeping, batch_transform=mix)
    assert "in host memory" in loader.explain()
    for (images, _), (plain, _) in zip(loader, FastLoader(store, 6, transform=EVAL), strict=True):
        assert images.shape == plain.shape
    fresh = list(FastLoader(store, 6, transform=EVAL))
    assert_same([images for images, _ in kept], [images for images, _ in fresh])

    pictures = images_of((8, 3, 9, 9))
    before = pictures.clone()
    rows = torch.utils.data.TensorDataset(pictures, labels_of(8))
    for _ in FastLoader(rows, 4, batch_transform=mix):
        pass
    assert torch.equal(pictures, before)


def test_the_core_refuses_boxes_outside():
    batch = images_of((2, 3, 4, 5)).view(torch.uint8).numpy()
    for box in ((0, 5, 0, 20), (-1, 2, 0, 20), (3, 2, 0, 20), (0, 4, 0, 21), (0, 4, 9, 8)):
        with pytest.raises(ValueError, match="outside"):
            core().cut_mix(batch, *box)
