"""Each photo is made smaller in the same way in each epoch."""

from common import FOLDER, loader, train
from torch.utils.data import ConcatDataset
from torchvision import transforms as T
from torchvision.datasets import ImageFolder

if __name__ == "__main__":
    chain = T.Compose([T.Resize((128, 128)), T.RandomCrop(112), T.PILToTensor()])
    train(
        loader(ConcatDataset([ImageFolder(FOLDER / "photos", chain)] * 20), batch_size=16),
        work_s=0.002,
    )
