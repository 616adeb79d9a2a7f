"""Train from an object store: only what a batch needs is fetched, and kept in a cache on the disk.

    fastload pack imagenet/train s3://my-bucket/train.lmdb
    python examples/streaming_s3.py s3://my-bucket/train.lmdb --disk-limit 200GB

Credentials come from the usual places (environment variables, the machine's role). For MinIO and
others like it, set AWS_ENDPOINT_URL. gs://, az:// and https:// work in the same way.
"""

import argparse
from pathlib import Path

import torch
from torch import nn
from torchvision import models
from torchvision import transforms as T

from fastload import FastLoader, PackedDataset


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("store", help="the URL of a store that fastload packed")
    parser.add_argument("--cache-dir", help="a folder on a fast local disk")
    parser.add_argument("--disk-limit", help="bytes that it may take, such as 200GB; 0: none")
    parser.add_argument("--shuffle-window", type=int, help="blocks of 8 MB; for small records")
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--epochs", type=int, default=90)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--checkpoint", type=Path, default=Path("checkpoint.pt"))
    args = parser.parse_args()

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train_tf = T.Compose(
        [
            T.RandomResizedCrop(args.size),
            T.RandomHorizontalFlip(),
            T.ToTensor(),
            T.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ]
    )
    dataset = PackedDataset(
        args.store, train_tf, cache_dir=args.cache_dir, disk_limit=args.disk_limit
    )
    train = FastLoader(
        dataset,
        batch_size=args.batch_size,
        shuffle=True,
        drop_last=True,
        seed=0,  # the order of the next epoch is known too, so the cache keeps what it needs first
        device=device if device.type == "cuda" else None,
        shuffle_window=args.shuffle_window,
    )
    model = models.get_model(args.model, num_classes=len(dataset.classes)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9, weight_decay=1e-4)
    parts = {"model": model, "optimizer": optimizer, "train": train}
    first = 0
    if args.checkpoint.exists():
        saved = torch.load(args.checkpoint, map_location=device, weights_only=True)
        first = saved.pop("epoch")
        for name, state in saved.items():
            parts[name].load_state_dict(state)

    for epoch in range(first, args.epochs):
        model.train()
        for images, labels in train:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        state = {name: part.state_dict() for name, part in parts.items()}
        torch.save({**state, "epoch": epoch + 1}, args.checkpoint)
        stats = train.stats()
        remote = stats["remote"]
        print(
            f"epoch {epoch}: loss {loss.item():.3f}, {stats['images_per_s']:,.0f} images/s, "
            f"{remote['nbytes'] / 1e6:,.1f} MB in {remote['requests']:,} requests, "
            f"{remote['hit_nbytes'] / 1e6:,.1f} MB from the cache"
        )
        print(stats["why"])  # what the loop waited for


if __name__ == "__main__":
    main()
