"""Photos much larger than what the network sees."""

from common import FOLDER, loader, train
from torch.utils.data import ConcatDataset
from torchvision import transforms as T
from torchvision.datasets import ImageFolder

if __name__ == "__main__":
    chain = T.Compose([T.RandomResizedCrop(112), T.PILToTensor()])
    train(
        loader(ConcatDataset([ImageFolder(FOLDER / "large", chain)] * 20), batch_size=8),
        work_s=0.002,
    )
