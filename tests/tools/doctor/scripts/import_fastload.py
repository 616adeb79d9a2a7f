"""Photos that FastLoader reads by itself, in a loop that waits for them."""

from common import FOLDER, loader, train
from torch.utils.data import ConcatDataset
from torchvision import transforms as T
from torchvision.datasets import ImageFolder

if __name__ == "__main__":
    chain = T.Compose([T.RandomResizedCrop(64), T.PILToTensor()])
    photos = ConcatDataset([ImageFolder(FOLDER / "photos", chain)] * 20)
    train(loader(photos, batch_size=16), work_s=0.002)
