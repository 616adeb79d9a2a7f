"""In trainers: the loss curve is DataLoader's, every sample comes once, a checkpoint resumes.

Lightning, accelerate and transformers come with the extra ``trainers``; their tests are long.
"""

from __future__ import annotations

import multiprocessing

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from batches import EVAL, TRAIN
from fastload import FastLoader, PackedDataset
from fastload._engine.base import BatchEngine
from fastload._engine.registry import NATIVE
from torchrun import torchrun

KINDS = [DataLoader, FastLoader]


def regression():
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
    return TensorDataset(x, x.sum(1, keepdim=True))


def test_a_torchrun_job_with_two_ranks_shards_by_itself(tmp_path):
    parts = torchrun(
        """
        import warnings, torch.distributed
        from fastload import FastLoader
        torch.distributed.init_process_group("gloo")
        loader = FastLoader(range(25), 4, shuffle=True, shard=True)
        epochs = [[i for batch in loader for i in batch.tolist()] for _ in range(2)]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            list(FastLoader(range(5)))
        told = [str(w.message) for w in caught if "every sample" in str(w.message)]
        report([epochs, len(loader), loader.stats()["padding"], len(told)])
        torch.distributed.destroy_process_group()
        """,
        tmp_path,
    )
    for epoch in range(2):
        seen = parts[0][0][epoch] + parts[1][0][epoch]
        assert len(seen) == 26
        assert set(seen) == set(range(25))
    assert parts[0][0][0] != parts[0][0][1]
    assert [part[1] for part in parts] == [4, 4]
    assert sum(part[2] for part in parts) == 1
    assert [part[3] for part in parts] == [1, 1]


@pytest.mark.long
@pytest.mark.parametrize("arguments", ["shuffle=True, seed=1", "shuffle=True, shard=True"])
def test_accelerate_gives_every_sample_once_on_two_ranks(tmp_path, arguments):
    parts = torchrun(
        f"""
        from accelerate import Accelerator
        from fastload import FastLoader
        accelerator = Accelerator(cpu=True)
        loader = accelerator.prepare(FastLoader(range(24), 3, {arguments}))
        report([i for batch in loader for i in batch.tolist()])
        accelerator.end_training()
        """,
        tmp_path,
    )
    assert sorted(parts[0] + parts[1]) == list(range(24))


def decoded_by(monkeypatch):
    """Which engine each batch is submitted to from now on, and of how many records: a list."""
    seen = []
    submit = BatchEngine.submit

    def watched(self, records, **arguments):
        seen.append((self.name, len(records)))
        return submit(self, records, **arguments)

    monkeypatch.setattr(BatchEngine, "submit", watched)
    return seen


@pytest.mark.long
def test_a_dataloader_over_a_packed_dataset_decodes_whole_batches(store, monkeypatch):
    from accelerate import Accelerator

    expected = list(FastLoader(store, 5, transform=EVAL, num_workers=0))
    prepared = Accelerator(cpu=True).prepare(DataLoader(PackedDataset(store, EVAL), 5))
    assert isinstance(prepared.dataset, PackedDataset)
    seen = decoded_by(monkeypatch)
    assert len(list(prepared)) == len(expected)
    assert seen == [(NATIVE.name, len(labels)) for _, labels in expected]
    for (images, labels), (reference, known) in zip(prepared, expected, strict=True):
        assert torch.equal(images, reference)
        assert torch.equal(labels, known)


def lightning_curve(kind, folder, resume_at=None):
    """Losses of three epochs; with ``resume_at`` stopped after so many steps and resumed."""
    lightning = pytest.importorskip("lightning")

    losses = []

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch, number):
            x, y = batch
            loss = torch.nn.functional.mse_loss(self.layer(x), y)
            losses.append(loss.item())
            return loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    def fit(steps, checkpoint=None):
        lightning.seed_everything(1, verbose=False)
        trainer = lightning.Trainer(
            max_steps=steps,
            accelerator="cpu",
            devices=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        generator = torch.Generator().manual_seed(3)
        loader = kind(regression(), 16, shuffle=True, generator=generator)
        trainer.fit(Model(), loader, ckpt_path=checkpoint)
        trainer.save_checkpoint(folder / "last.ckpt")

    if resume_at is None:
        fit(12)
    else:
        fit(resume_at)
        fit(12, folder / "last.ckpt")
    return losses


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_lightning_has_the_same_curve_and_resumes_in_mid_epoch(tmp_path):
    expected = lightning_curve(DataLoader, tmp_path)
    assert lightning_curve(FastLoader, tmp_path) == expected
    assert lightning_curve(FastLoader, tmp_path, resume_at=6) == expected


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_hugging_faces_trainer_takes_columns_called_as_the_model_calls_them(tmp_path, store):
    datasets = pytest.importorskip("datasets")
    pytest.importorskip("transformers")
    from transformers import Trainer, TrainingArguments

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(3 * 64 * 64, 1)

        def forward(self, pixel_values, labels):
            output = self.layer(pixel_values.flatten(1)).squeeze(1)
            return {"loss": torch.nn.functional.mse_loss(output, labels.float())}

    packed = PackedDataset(store)
    files = packed.store.read(np.arange(8))
    table = datasets.Dataset.from_dict(
        {"image": files, "label": list(range(8)), "name": list("abcdefgh")}
    ).cast_column("image", datasets.Image())
    table = table.rename_columns({"image": "pixel_values", "label": "labels"})
    arguments = TrainingArguments(str(tmp_path), max_steps=2, report_to=[], use_cpu=True)
    given = PackedDataset(table, transform=EVAL)
    assert Trainer(Model(), arguments, train_dataset=given).train().global_step == 2


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_hugging_faces_trainer_has_the_same_curve(tmp_path):
    pytest.importorskip("transformers")
    from transformers import Trainer, TrainingArguments

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def forward(self, x, y):
            return {"loss": torch.nn.functional.mse_loss(self.layer(x), y)}

    def collate(samples):
        x, y = zip(*samples, strict=True)
        return {"x": torch.stack(x), "y": torch.stack(y)}

    curves = []
    for kind in KINDS:

        class Trained(Trainer):
            def get_train_dataloader(self, kind=kind):
                loader = kind(
                    self.train_dataset,
                    16,
                    shuffle=True,
                    generator=torch.Generator().manual_seed(3),
                    collate_fn=collate,
                )
                return self.accelerator.prepare(loader)

        torch.manual_seed(0)
        arguments = TrainingArguments(
            str(tmp_path), max_steps=8, logging_steps=1, report_to=[], use_cpu=True
        )
        trainer = Trained(Model(), arguments, train_dataset=regression(), data_collator=collate)
        trainer.train()
        curves.append([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
    assert len(curves[0]) == 8
    assert curves[0] == curves[1]


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("shuffle", [True, False])
def test_hugging_faces_trainer_resumes_in_mid_epoch_on_the_fast_path(
    tmp_path, store, shuffle, monkeypatch
):
    """With random transforms, of batches too: HF leaves out the batches it has had."""
    pytest.importorskip("transformers")
    from transformers import Trainer, TrainingArguments

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(3 * 64 * 64, 1)

        def forward(self, image, label):
            output = self.layer(image.flatten(1)).squeeze(1)
            return {"loss": torch.nn.functional.mse_loss(output, label.float())}

    monkeypatch.delattr(PackedDataset, "__getitem__")
    monkeypatch.delattr(PackedDataset, "__getitems__")

    def noisy(batch):
        return {**batch, "image": batch["image"] + 0.1 * torch.rand(len(batch["image"]), 1, 1, 1)}

    class Trained(Trainer):
        def get_train_dataloader(self):
            loader = FastLoader(
                PackedDataset(store, fields=()),
                4,
                shuffle=shuffle,
                transform=TRAIN,
                seed=5,
                num_workers=0,
                batch_transform=noisy,
            )
            return self.accelerator.prepare(loader)

    def curve(folder, checkpoint=None):
        torch.manual_seed(0)
        arguments = TrainingArguments(
            str(folder),
            max_steps=15,
            logging_steps=1,
            save_steps=8,
            learning_rate=1e-3,
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
        )
        trainer = Trained(Model(), arguments, train_dataset=PackedDataset(store, fields=()))
        trainer.train(resume_from_checkpoint=checkpoint)
        return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]

    seen = decoded_by(monkeypatch)
    expected = curve(tmp_path / "whole")
    assert len(expected) == 15
    assert set(seen) == {(NATIVE.name, 4)}
    resumed = curve(tmp_path / "resumed", str(tmp_path / "whole" / "checkpoint-8"))
    assert resumed == expected


def photos_of_hugging_face(photos):
    datasets = pytest.importorskip("datasets")

    files = sorted(str(path) for path in photos.rglob("*.jpg"))
    features = {"image": datasets.Image(), "label": datasets.Value("int64")}
    rows = {"image": files, "label": [index % 3 for index in range(len(files))]}
    return datasets.Dataset.from_dict(rows, features=datasets.Features(features)).shuffle(seed=1)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_accelerate_decodes_whole_batches_of_a_hugging_face_dataset(photos, monkeypatch):
    from accelerate import Accelerator

    dataset = photos_of_hugging_face(photos)
    expected = list(FastLoader(dataset, batch_size=8, transform=EVAL))
    loader = Accelerator(cpu=True).prepare(FastLoader(dataset, batch_size=8, transform=EVAL))
    monkeypatch.delattr(PackedDataset, "__getitem__")
    for mine, theirs in zip(loader, expected, strict=True):
        assert torch.equal(mine["image"], theirs["image"])
        assert torch.equal(mine["label"], theirs["label"])


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_hugging_faces_trainer_has_the_same_curve_on_its_own_dataset(tmp_path, photos):
    """As people write it, by with_transform; as a PackedDataset; and in a loader of ours."""
    pytest.importorskip("transformers")
    from transformers import Trainer, TrainingArguments

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.LazyLinear(1)

        def forward(self, image, labels):
            output = self.layer(image.flatten(1)).squeeze(1)
            return {"loss": torch.nn.functional.mse_loss(output, labels.float())}

    def transformed(batch):
        return {"image": [EVAL(image.convert("RGB")) for image in batch["image"]], **rest(batch)}

    def rest(batch):
        return {"labels": batch["label"]}

    class Ours(Trainer):
        def get_train_dataloader(self):
            loader = FastLoader(PackedDataset(dataset, fields=()), 4, transform=EVAL)
            return self.accelerator.prepare(loader)

    class Theirs(Trainer):
        def _get_train_sampler(self, *dataset):
            return None  # in order

    dataset = photos_of_hugging_face(photos).rename_column("label", "labels")
    own = dataset.rename_column("labels", "label").with_transform(transformed)
    curves = []
    for kind, given in (
        (Theirs, own),
        (Theirs, PackedDataset(dataset, transform=EVAL)),
        (Ours, dataset),
    ):
        arguments = TrainingArguments(
            str(tmp_path),
            max_steps=8,
            logging_steps=1,
            per_device_train_batch_size=4,
            learning_rate=1e-3,
            remove_unused_columns=kind is Ours,
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
        )
        torch.manual_seed(0)
        model = Model()
        model(torch.stack([PackedDataset(dataset, transform=EVAL)[0]["image"]]), torch.zeros(1))
        trainer = kind(model, arguments, train_dataset=given)
        trainer.train()
        curves.append([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
    assert len(curves[0]) == 8
    assert curves[0] == curves[1] == curves[2]


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
def test_workers_that_persist_end_with_lightnings_fit(kind):
    lightning = pytest.importorskip("lightning")

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        def training_step(self, batch, number):
            return self.layer(batch).mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    loader = kind([torch.ones(2)] * 8, 2, num_workers=2, persistent_workers=True)
    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Model(), loader)
    assert not multiprocessing.active_children()
