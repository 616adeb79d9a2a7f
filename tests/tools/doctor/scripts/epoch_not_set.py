"""The sampler of several ranks is not told its epoch."""

from common import Ready, loader, train
from torch.utils.data import DistributedSampler

if __name__ == "__main__":
    dataset = Ready(128)
    sampler = DistributedSampler(dataset, num_replicas=1, rank=0)
    train(loader(dataset, shuffle=False, sampler=sampler), epochs=10)
