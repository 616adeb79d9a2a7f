"""Train a ResNet on ImageNet: one GPU, many, or the CPU; a run that was stopped resumes mid-epoch.

    fastload pack imagenet/train train.lmdb --encode dct     # or leave the folders as they are
    fastload pack imagenet/val val.lmdb
    torchrun --nproc-per-node 8 examples/imagenet.py train.lmdb val.lmdb

Each process reads its part of every epoch (``shard=True``). The checkpoint has the loader's state:
the same command resumes at the next sample, also on another number of GPUs.
"""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torchvision import models
from torchvision import transforms as T

from fastload import FastLoader

NORMALIZE = T.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("train", help="a store that fastload packed, or a folder of class folders")
    parser.add_argument("val")
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--epochs", type=int, default=90)
    parser.add_argument("--batch-size", type=int, default=256, help="of each process")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--lr", type=float, default=0.1, help="for 256 images a step")
    parser.add_argument("--checkpoint", type=Path, default=Path("checkpoint.pt"))
    parser.add_argument("--save-every", type=int, default=1000, help="steps")
    parser.add_argument("--steps", type=int, help="stop after this many, as if interrupted")
    args = parser.parse_args()

    cuda = torch.cuda.is_available()
    ranks = int(os.environ.get("WORLD_SIZE", 1))
    if ranks > 1:
        dist.init_process_group("nccl" if cuda else "gloo")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if cuda else None
    first = not dist.is_initialized() or dist.get_rank() == 0

    train_tf = T.Compose(
        [T.RandomResizedCrop(args.size), T.RandomHorizontalFlip(), T.ToTensor(), NORMALIZE]
    )
    val_tf = T.Compose(
        [T.Resize(args.size * 8 // 7), T.CenterCrop(args.size), T.ToTensor(), NORMALIZE]
    )
    given = {"batch_size": args.batch_size, "shard": ranks > 1, "device": device}
    train = FastLoader(
        args.train, shuffle=True, drop_last=True, seed=0, transform=train_tf, **given
    )
    val = FastLoader(args.val, transform=val_tf, **given)

    network = models.get_model(args.model, num_classes=len(train.dataset.classes)).to(device)
    model = nn.parallel.DistributedDataParallel(network) if ranks > 1 else network
    optimizer = torch.optim.SGD(
        model.parameters(), args.lr * args.batch_size * ranks / 256, momentum=0.9, weight_decay=1e-4
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)
    parts = {"model": network, "optimizer": optimizer, "schedule": schedule, "train": train}
    start = step = 0
    if args.checkpoint.exists():
        saved = torch.load(args.checkpoint, map_location=device, weights_only=True)
        start, step = saved.pop("epoch"), saved.pop("step")
        for name, state in saved.items():
            parts[name].load_state_dict(state)
        if first:
            print(f"resumed after step {step}")

    loss = torch.tensor(float("nan"))  # if the checkpoint was the last step of its epoch
    for epoch in range(start, args.epochs):
        model.train()
        for images, labels in train:  # after resuming, the rest of the epoch that was interrupted
            loss = nn.functional.cross_entropy(model(images), labels, label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if first and (step % args.save_every == 0 or step == args.steps):
                state = {name: part.state_dict() for name, part in parts.items()}
                torch.save({**state, "epoch": epoch, "step": step}, args.checkpoint)
            if step == args.steps:
                return
        schedule.step()
        accuracy = evaluate(model, val)
        if first:
            print(f"epoch {epoch}: loss {loss.item():.3f}, accuracy {accuracy:.1%}")
            print(train.stats()["why"])  # what the loop waited for


@torch.no_grad()
def evaluate(model: nn.Module, loader: FastLoader) -> float:
    """The share of images that get the right label, over all processes."""
    model.eval()
    counts = torch.zeros(2, device=next(model.parameters()).device)
    for images, labels in loader:
        counts += torch.stack(
            [(model(images).argmax(1) == labels).sum(), torch.tensor(len(labels)).to(counts.device)]
        )
    if dist.is_initialized():
        dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()


if __name__ == "__main__":
    main()
    if dist.is_initialized():
        dist.destroy_process_group()
