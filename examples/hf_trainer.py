"""Hugging Face's Trainer: image classification from a folder, a store or a dataset of the Hub.

    python examples/hf_trainer.py ./imgs
    python examples/hf_trainer.py beans --hub

Trainer makes torch's DataLoader itself; ``get_train_dataloader`` gives it a FastLoader instead.
"""

import argparse

import torch
from torchvision import transforms as T
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification

from fastload import FastLoader, PackedDataset


def collated(samples: list[tuple[torch.Tensor, int]]) -> dict[str, torch.Tensor]:
    """A batch with the names that the model's ``forward`` has."""
    images, labels = zip(*samples)
    return {"pixel_values": torch.stack(images), "labels": torch.tensor(labels)}


class FastTrainer(Trainer):
    """Trainer over a FastLoader. ``accelerator.prepare`` keeps it, and gives each rank its part."""

    def get_train_dataloader(self) -> FastLoader:
        loader = FastLoader(
            self.train_dataset,
            self.args.train_batch_size,
            shuffle=True,
            drop_last=True,
            seed=self.args.seed,
            collate_fn=collated,
        )
        return self.accelerator.prepare(loader)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("images")
    parser.add_argument("--hub", action="store_true", help="images names a dataset of the Hub")
    parser.add_argument("--epochs", type=float, default=3)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--out", default="hf_trainer")
    args = parser.parse_args()

    transform = T.Compose(
        [
            T.RandomResizedCrop(args.size),
            T.RandomHorizontalFlip(),
            T.ToTensor(),
            T.Normalize((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
        ]
    )
    source = args.images
    if args.hub:
        from datasets import load_dataset

        source = load_dataset(args.images, split="train")
    dataset = PackedDataset(source, transform)

    config = ViTConfig(
        image_size=args.size,
        num_hidden_layers=args.layers,
        num_labels=len(dataset.classes),
        id2label=dict(enumerate(dataset.classes)),
        label2id=dataset.class_to_idx,
    )
    trainer = FastTrainer(
        ViTForImageClassification(config),
        TrainingArguments(
            args.out,
            per_device_train_batch_size=args.batch_size,
            num_train_epochs=args.epochs,
            learning_rate=3e-4,
            logging_steps=10,
            report_to=[],
        ),
        train_dataset=dataset,
    )
    done = trainer.train()
    print(f"{done.global_step} steps, loss {done.training_loss:.3f}")


if __name__ == "__main__":
    main()
