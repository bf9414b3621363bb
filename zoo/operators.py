"""torchvision's published wheels are built for CUDA; their models are plain Python and need two operators declared.

With torch's CPU build the compiled part of torchvision does not load, and importing the package fails where it attaches
shapes to operators that are not there. No model of the zoo calls them: a declaration is enough.
"""

import torch


def declare() -> None:
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _KEPT.append(library)  # what it declares lives as long as it does


_KEPT: list[torch.library.Library] = []
