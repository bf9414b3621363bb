"""Declares two operators that torchvision needs, as its published wheels are built for CUDA.

With torch's CPU build the compiled part of torchvision does not load, and importing the package
fails where it registers shapes of the missing operators. No model of the zoo calls them: a
declaration is enough.
"""

import torch


def declare() -> None:
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _KEPT.append(library)  # what it declares lives as long as it does


_KEPT: list[torch.library.Library] = []
