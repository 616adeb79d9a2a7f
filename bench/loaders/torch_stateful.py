"""torchdata's StatefulDataLoader: the same workers as torch's, and a state to save."""

from __future__ import annotations

from bench.loaders.base import Setting
from bench.loaders.torch_pil import TorchPil
from bench.workload import Workload


class TorchStateful(TorchPil):
    summary = "torchdata's StatefulDataLoader, otherwise as torch-pil"
    needs = ("torchdata", "torchvision", "PIL")
    user_imports = ("torchvision.datasets", "torchvision.transforms")

    def open(self, work: Workload, setting: Setting) -> None:
        from torchdata.stateful_dataloader import StatefulDataLoader

        self._channels_last = work.memory_format == "channels_last"
        self._loader = StatefulDataLoader(self.dataset(work), **self.options(work), **setting)
