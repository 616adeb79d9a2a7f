"""Lightning: a DataModule whose loader is a FastLoader, which Lightning saves and resumes.

python examples/lightning_module.py ./imgs --devices 1
"""

import argparse

import lightning
import torch
from torch import nn
from torchvision import models
from torchvision import transforms as T

from fastload import FastLoader, PackedDataset


class Images(lightning.LightningDataModule):
    """Batches of a folder of class folders, or of a store that fastload packed."""

    def __init__(self, path: str, batch_size: int, size: int) -> None:
        super().__init__()
        self.batch_size = batch_size
        transform = T.Compose(
            [
                T.RandomResizedCrop(size),
                T.RandomHorizontalFlip(),
                T.ToTensor(),
                T.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
            ]
        )
        self.dataset = PackedDataset(path, transform)

    def train_dataloader(self) -> FastLoader:
        # Lightning saves its state_dict in the checkpoint: a stopped epoch resumes where it was.
        return FastLoader(
            self.dataset,
            self.batch_size,
            shuffle=True,
            drop_last=True,
            seed=0,
            shard=(self.trainer.global_rank, self.trainer.world_size),
        )


class Classifier(lightning.LightningModule):
    def __init__(self, model: str, classes: int, lr: float) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.model = models.get_model(model, num_classes=classes)

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        images, labels = batch
        loss = nn.functional.cross_entropy(self.model(images), labels)
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), self.hparams.lr)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("images")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--devices", default="auto")
    parser.add_argument("--out", default="lightning")
    parser.add_argument("--resume", help="a checkpoint of an earlier run")
    args = parser.parse_args()

    lightning.seed_everything(0)
    images = Images(args.images, args.batch_size, args.size)
    model = Classifier(args.model, len(images.dataset.classes), lr=1e-3)
    trainer = lightning.Trainer(
        max_epochs=args.epochs,
        devices=int(args.devices) if args.devices.isdigit() else args.devices,
        use_distributed_sampler=False,
        default_root_dir=args.out,
        log_every_n_steps=10,
    )
    trainer.fit(model, images, ckpt_path=args.resume)
    print(trainer.train_dataloader.explain())


if __name__ == "__main__":
    main()
