"""Training on two ranks: DataLoader's loss curve, every sample once, the fast path, resuming.

The jobs are scripts under torchrun. Lightning and accelerate come with the extra ``trainers``.
"""

from __future__ import annotations

import pytest

from torchrun import torchrun, torchrun_forked

# A regression whose samples say who they are, and a packed store's with random transforms.
TRAINING = """
import itertools, sys, warnings
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler
from torchvision import transforms as v1
from fastload import FastLoader, PackedDataset

warnings.simplefilter("ignore")
torch.set_num_threads(1)
EVAL = v1.Compose([v1.Resize(40), v1.CenterCrop(32), v1.ToTensor()])
TRAIN = v1.Compose([v1.RandomResizedCrop(32), v1.RandomHorizontalFlip(), v1.ToTensor()])

class Numbers(Dataset):
    def __len__(self):
        return 32
    def __getitem__(self, i):
        x = torch.randn(4, generator=torch.Generator().manual_seed(i))
        return x, i

def network(features):
    torch.manual_seed(0)
    return torch.nn.Linear(features, 1)

def loss_of(layer, batch):
    x, y = batch
    return torch.nn.functional.mse_loss(layer(x.flatten(1)).squeeze(1), y.float())
"""

LIGHTNING = """
import lightning

class Model(lightning.LightningModule):
    def __init__(self, features):
        super().__init__()
        self.layer = network(features)
        self.losses, self.seen = [], []
    def training_step(self, batch, number):
        loss = loss_of(self.layer, batch)
        self.losses.append(loss.item())
        self.seen.append(batch[1].tolist())
        return loss
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-3)

def fit(loader, features, folder, checkpoint=None, **arguments):
    # 12 steps, from those of the checkpoint on; the state after 6 is kept
    lightning.seed_everything(1, verbose=False)
    keep = lightning.pytorch.callbacks.ModelCheckpoint(
        folder, "{step}", enable_version_counter=False, every_n_train_steps=6, save_top_k=-1
    )
    trainer = lightning.Trainer(
        max_steps=12, accelerator="cpu", devices=2, strategy="ddp", logger=False,
        callbacks=[keep], enable_progress_bar=False, enable_model_summary=False, **arguments,
    )
    model = Model(features)
    trainer.fit(model, loader, ckpt_path=checkpoint)
    return model, trainer.train_dataloader

def resumed(make, features, folder, **arguments):
    # the curve of a run that was interrupted after 6 steps
    first, _ = fit(make(), features, folder, **arguments)
    second, _ = fit(make(), features, folder, folder + "/step=6.ckpt", **arguments)
    return first.losses[:6] + second.losses
"""


@pytest.mark.long
def test_lightning_has_the_same_curve_and_resumes_in_mid_epoch(tmp_path):
    pytest.importorskip("lightning")
    parts = torchrun(
        TRAINING
        + LIGHTNING
        + f"""
folder = {str(tmp_path)!r}
theirs, _ = fit(DataLoader(Numbers(), 4, shuffle=True), 4, folder)
ours, loader = fit(FastLoader(Numbers(), 4, shuffle=True), 4, folder)
again = resumed(lambda: FastLoader(Numbers(), 4, shuffle=True), 4, folder)
report([theirs.losses, ours.losses, again, ours.seen, type(loader).__name__])
""",
        tmp_path,
    )
    for theirs, ours, again, _, kind in parts:
        assert kind == "FastLoader"
        assert len(theirs) == 12
        assert ours == theirs
        assert again == theirs
    for epoch in range(3):
        seen = [i for part in parts for batch in part[3][4 * epoch : 4 * epoch + 4] for i in batch]
        assert sorted(seen) == list(range(32))


@pytest.mark.long
def test_lightning_stays_on_the_fast_path_and_resumes_with_random_transforms(tmp_path, store):
    pytest.importorskip("lightning")
    parts = torchrun(
        TRAINING
        + LIGHTNING
        + f"""
folder, store, F = {str(tmp_path)!r}, {str(store)!r}, 3 * 32 * 32
theirs, _ = fit(DataLoader(PackedDataset(store, EVAL), 3, shuffle=True), F, folder)
ours, _ = fit(FastLoader(store, 3, shuffle=True, transform=EVAL), F, folder)
made = [theirs.losses, ours.losses]
for arguments, own in (({{}}, {{}}), ({{"use_distributed_sampler": False}}, {{"shard": True}})):
    make = lambda: FastLoader(store, 3, shuffle=True, transform=TRAIN, seed=3, **own)
    model, loader = fit(make(), F, folder, **arguments)
    again = resumed(make, F, folder, **arguments)
    made.append([model.losses, again, model.seen, loader.explain(), loader.stats()["engine"]])
report(made)
""",
        tmp_path,
    )
    for theirs, ours, *runs in parts:
        assert ours == theirs
        for losses, again, _, explained, engine in runs:
            assert again == losses
            assert explained.startswith("engine: native")
            assert engine == "native"


ACCELERATE = """
from accelerate import Accelerator, skip_first_batches
from fastload._engine.base import BatchEngine

submitted = []
real = BatchEngine.submit
def submit(self, records, **arguments):
    submitted.append(len(records))
    return real(self, records, **arguments)
BatchEngine.submit = submit

accelerator = Accelerator(cpu=True)

def train(loader, features, epochs, skip=0, layer=None, first=0):
    torch.manual_seed(7)
    layer = network(features) if layer is None else layer
    optimizer = torch.optim.SGD(layer.parameters(), lr=1e-3)
    model, optimizer, loader = accelerator.prepare(layer, optimizer, loader)
    losses, seen = [], []
    for epoch in range(first, epochs):
        loader.set_epoch(epoch)
        batches = skip_first_batches(loader, skip) if skip else loader
        if skip:
            batches.set_epoch(epoch)
        skip = 0
        for batch in batches:
            loss = loss_of(model, batch)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            seen.append(batch[1].tolist())
            yield losses, seen, layer
"""


@pytest.mark.long
@pytest.mark.parametrize("ranks", [1, 2])
def test_accelerate_has_the_same_curve_and_every_sample_once(tmp_path, ranks):
    parts = torchrun(
        TRAINING
        + ACCELERATE
        + """
made = []
for kind in (DataLoader, FastLoader):
    *_, (losses, seen, _) = train(kind(Numbers(), 4, shuffle=True), 4, 3)
    made += [losses, seen]
for arguments in ({"seed": 1}, {"shard": True}, {"seed": 1, "shard": True}):
    *_, (_, seen, _) = train(FastLoader(Numbers(), 4, shuffle=True, **arguments), 4, 3)
    made.append(seen)
accelerator.end_training()
report(made)
""",
        tmp_path,
        ranks,
    )
    for theirs, _, ours, *_ in parts:
        assert ours == theirs
    # Dividing what is divided already would lose samples (accelerate's issues 3520, 4199).
    for seen in ([part[column] for part in parts] for column in (3, 4, 5, 6)):
        steps = 8 // ranks
        epochs = [
            [
                i
                for part in seen
                for batch in part[epoch * steps : (epoch + 1) * steps]
                for i in batch
            ]
            for epoch in range(3)
        ]
        assert all(sorted(epoch) == list(range(32)) for epoch in epochs)
        assert epochs[0] != epochs[1] != epochs[2]


@pytest.mark.long
@pytest.mark.parametrize("ranks", [1, 2])
def test_accelerate_stays_on_the_fast_path_and_resumes_with_random_transforms(
    tmp_path, store, ranks
):
    parts = torchrun(
        TRAINING
        + ACCELERATE
        + f"""
import copy
store, F = {str(store)!r}, 3 * 32 * 32
curves = []
for kind in (DataLoader, FastLoader):
    *_, (losses, _, _) = train(kind(PackedDataset(store, EVAL), 3, shuffle=True), F, 2)
    curves.append(losses)
for shuffle, workers in ((True, 0), (False, 0), (True, 2)):
    make = lambda: FastLoader(
        store, 3, shuffle=shuffle, transform=TRAIN, seed=3, num_workers=workers
    )
    submitted.clear()
    *_, (whole, _, _) = train(make(), F, 2)
    calls = len(submitted)
    steps = len(whole) // 2
    for number, (losses, _, layer) in enumerate(train(make(), F, 2)):
        if number == steps + 1:
            break
    *_, (rest, _, _) = train(make(), F, 2, skip=2, layer=copy.deepcopy(layer), first=1)
    curves.append([whole, losses[: steps + 2] + rest, calls])
accelerator.end_training()
report(curves)
""",
        tmp_path,
        ranks,
    )
    for theirs, ours, *runs in parts:
        assert ours == theirs
        for whole, again, _ in runs:
            assert again == whole
        for whole, _, calls in runs:
            assert calls == len(whole)


def test_ddp_has_the_same_curve_and_resumes(tmp_path, store):
    parts = torchrun_forked(
        TRAINING
        + f"""
torch.distributed.init_process_group("gloo")
store, F = {str(store)!r}, 3 * 32 * 32

def train(loader, epochs, state=None, layer=None):
    model = torch.nn.parallel.DistributedDataParallel(layer or network(F))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    if state is not None:
        loader.load_state_dict(state)
    for _ in range(epochs):
        for batch in loader:
            loss = loss_of(model, batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            yield loss.item(), model.module

def losses(steps):
    return [loss for loss, _ in steps]

data = PackedDataset(store, EVAL)
made = [
    losses(train(DataLoader(data, 3, sampler=DistributedSampler(data, shuffle=False)), 2)),
    losses(train(FastLoader(data, 3, shard=True), 2)),
    losses(train(DataLoader(data, 3, sampler=DistributedSampler(data, seed=5)), 2)),
    losses(train(FastLoader(data, 3, sampler=DistributedSampler(data, seed=5)), 2)),
]
make = lambda: FastLoader(store, 3, shuffle=True, transform=TRAIN, seed=3, shard=True)
made.append(losses(train(make(), 3)))
loader, first = make(), []
for loss, layer in train(loader, 3):
    first.append(loss)
    if len(first) == 6:
        break
made.append(first + losses(train(make(), 2, loader.state_dict(), layer)))
made.append(loader.explain())
report(made)
torch.distributed.destroy_process_group()
""",
        tmp_path,
    )
    for in_order, ours, shuffled, ours_shuffled, whole, again, explained in parts:
        assert len(in_order) == 8
        assert ours == in_order
        assert ours_shuffled == shuffled
        assert len(whole) == 12
        assert again == whole
        assert explained.startswith("engine: native")


@pytest.mark.long
def test_lightning_divides_a_mix_by_whole_batches_and_resumes_it(tmp_path):
    pytest.importorskip("lightning")
    parts = torchrun(
        TRAINING
        + LIGHTNING
        + f"""
from fastload import Mix

class Others(Numbers):
    def __len__(self):
        return 20
    def __getitem__(self, i):
        return super().__getitem__(100 + i)

folder = {str(tmp_path)!r}

def make(**own):
    mix = Mix([(Numbers(), 3), (Others(), 1)], epoch_size=32)
    return FastLoader(mix, 4, shuffle=True, seed=3, **own)

whole = [[labels.tolist() for _, labels in loader] for loader in [make()] for _ in range(3)]
options = {{"use_distributed_sampler": False}}
model, loader = fit(make(shard=True), 4, folder, **options)
again = resumed(lambda: make(shard=True), 4, folder, **options)
theirs, _ = fit(make(), 4, folder)  # divided by Lightning's own sampler around ours
report([whole, model.losses, again, model.seen, theirs.seen, type(loader).__name__])
""",
        tmp_path,
    )
    whole = [batch for epoch in parts[0][0] for batch in epoch]
    seen = [part[3] for part in parts]
    assert [batch for both in zip(*seen, strict=True) for batch in both] == whole
    for batch in whole:
        assert sum(number < 100 for number in batch) == 3
    for epoch in range(3):
        read = [i for part in parts for batch in part[4][4 * epoch : 4 * epoch + 4] for i in batch]
        assert sorted(read) == sorted(i for batch in parts[0][0][epoch] for i in batch)
    for _, losses, again, _, _, kind in parts:
        assert again == losses
        assert kind == "FastLoader"


@pytest.mark.long
def test_lightning_takes_whole_batches_of_groups_and_resumes_them(tmp_path):
    pytest.importorskip("lightning")
    parts = torchrun(
        TRAINING
        + LIGHTNING
        + f"""
folder = {str(tmp_path)!r}

def make(**own):
    return FastLoader(
        Numbers(), 4, shuffle=True, seed=3, batch_by=lambda i: i % 3, **own
    )

whole = [[labels.tolist() for _, labels in loader] for loader in [make()] for _ in range(3)]
options = {{"use_distributed_sampler": False}}
model, loader = fit(make(shard=True), 4, folder, **options)
again = resumed(lambda: make(shard=True), 4, folder, **options)
report([whole, model.losses, again, model.seen, len(loader), type(loader).__name__])
""",
        tmp_path,
    )
    expected = []
    for epoch in parts[0][0]:
        assert len(epoch) == 9
        expected += epoch + epoch[:1]  # so that both ranks have five
    seen = [part[3] for part in parts]
    assert [batch for both in zip(*seen, strict=True) for batch in both] == expected[:24]
    for _, losses, again, _, length, kind in parts:
        assert again == losses
        assert length == 5
        assert kind == "FastLoader"
