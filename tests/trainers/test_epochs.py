"""In Lightning, a resumed run augments as the run without an interruption would have."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import Dataset

from fastload import FastLoader


class Drawn(Dataset):
    """A sample is its index and a random number."""

    def __len__(self):
        return 12

    def __getitem__(self, i):
        return i, torch.rand(())


def lightning_epochs(folder, loader, stop, checkpoint=None, every=None):
    """Of each step its epoch, indices and random numbers; ``every``: when checkpoints are made."""
    lightning = pytest.importorskip("lightning")
    from lightning.pytorch.callbacks import ModelCheckpoint

    seen = []

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch, number):
            seen.append([self.current_epoch, *(part.tolist() for part in batch)])
            return self.layer(batch[1][:, None]).mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    saving = every and [ModelCheckpoint(folder, filename="{step}", save_top_k=-1, **every)]
    trainer = lightning.Trainer(
        max_epochs=stop,
        accelerator="cpu",
        devices=1,
        logger=False,
        callbacks=saving,
        enable_checkpointing=bool(saving),
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Model(), loader, ckpt_path=checkpoint)
    return seen


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize(
    "every", [{"every_n_epochs": 1}, {"every_n_train_steps": 3}, {"every_n_train_steps": 2}]
)
def test_lightning_goes_on_with_the_augmentation_of_the_epoch(tmp_path, shuffle, every):
    """From checkpoints of an epoch's end, of its very last step, and of steps between."""

    def loader():
        return FastLoader(Drawn(), 4, shuffle=shuffle, seed=1)

    expected = lightning_epochs(tmp_path, loader(), 3)
    lightning_epochs(tmp_path, loader(), 2, every=every)
    checkpoints = sorted(tmp_path.glob("step=*.ckpt"))
    assert len(checkpoints) == 6 // every.get("every_n_train_steps", 3)
    for path in checkpoints:
        got = lightning_epochs(tmp_path, loader(), 3, str(path))
        assert got == expected[int(path.stem.removeprefix("step=")) :]
