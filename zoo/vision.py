"""Image classifiers and segmentation nets: torchvision, timm, segmentation_models_pytorch."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from zoo import operators
from zoo.entry import CLASSES, RATE, Entry, Task, classify, images

TORCHVISION = {
    100: ["mnasnet0_5", "squeezenet1_1", "shufflenet_v2_x0_5"],
    50: [
        "regnet_x_400mf", "squeezenet1_0", "mnasnet0_75", "mnasnet1_0", "mnasnet1_3",
        "shufflenet_v2_x1_0", "shufflenet_v2_x1_5", "shufflenet_v2_x2_0", "regnet_x_800mf",
        "vgg11_bn", "vgg13_bn", "vgg16_bn", "vgg19_bn",
    ],
    25: [
        "resnet18", "googlenet", "densenet121", "resnet34", "resnet50", "inception_v3",
        "regnet_x_1_6gf", "resnext50_32x4d", "densenet169", "densenet201", "regnet_x_3_2gf",
        "densenet161", "alexnet", "vgg11", "vgg13", "vgg16", "vgg19", "regnet_x_32gf",
    ],
    10: [
        "resnet101", "resnet152", "wide_resnet50_2", "regnet_x_8gf", "resnext101_32x8d",
        "resnext101_64x4d", "regnet_x_16gf", "wide_resnet101_2",
    ],
}  # fmt: skip
"""Every classifier with ReLU units, by the number of training steps.

The others have GELU, SiLU, hard-swish, ReLU6, or gates (regnet_y)."""
NOT_RELU = [
    "mobilenet_v2",
    "mobilenet_v3_small",
    "efficientnet_b0",
    "regnet_y_400mf",
    "convnext_tiny",
    "vit_b_16",
]
"""One of each family that is refused: the record shows the reason."""
TIMM = {
    50: ["resnet10t", "dla46_c", "regnetx_002", "ghostnet_050"],
    25: [
        "hrnet_w18_small", "repvgg_a0", "dla34", "resnet18d", "resnetv2_18", "selecsls42",
        "gernet_s", "dpn48b", "legacy_seresnet18", "skresnet18", "resnest14d", "visformer_tiny",
        "hgnet_tiny", "cspresnet50", "resnet26t", "densenet121", "vovnet39a", "xception41",
        "xception", "res2net50_26w_4s", "tresnet_m", "vgg11",
    ],
    10: ["inception_v4", "inception_resnet_v2", "nasnetalarge", "pnasnet5large"],
}  # fmt: skip
"""The smallest of each family with ReLU units, and of families with gates among them."""
SIDES = {
    "alexnet": 64,
    "vit_b_16": 224,
    "inception_v3": 75,
    "inception_v4": 75,
    "inception_resnet_v2": 75,
    "nasnetalarge": 64,
    "visformer_tiny": 224,
}
"""Where 32 x 32 pixels are too few."""


def _rate(name: str) -> float:
    """Deep nets with two wide layers at the end: Adam diverges at 1e-3 too (vgg11, vgg11_bn)."""
    return 1e-4 if name.startswith("vgg") else RATE


def _image_task(model: nn.Module, side: int) -> Task:
    return Task(model, images(side), classify)


def _torchvision(name: str) -> Task:
    operators.declare()
    import torchvision

    options: dict[str, Any] = {"weights": None, "num_classes": CLASSES}
    if name in ("googlenet", "inception_v3"):
        options["init_weights"] = True
    if name == "inception_v3":
        options["aux_logits"] = False  # its helper head takes images of 299 x 299 only
    return _image_task(torchvision.models.get_model(name, **options), SIDES.get(name, 32))


def _timm(name: str) -> Task:
    operators.declare()
    import timm

    return _image_task(timm.create_model(name, num_classes=CLASSES), SIDES.get(name, 64))


def _segment(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), (x[:, 0] > 0).long() * y[:, None, None] % 3)


def _segmentation(name: str) -> Task:
    operators.declare()
    import segmentation_models_pytorch as smp

    model = getattr(smp, name)(encoder_name="resnet18", encoder_weights=None, classes=3)
    return Task(model, images(64, rows=4), _segment)


def entries() -> Iterator[Entry]:
    for name in NOT_RELU:
        yield Entry("images, torchvision", name, partial(_torchvision, name))
    for steps, names in TORCHVISION.items():
        for name in names:
            yield Entry(
                "images, torchvision", name, partial(_torchvision, name), steps, _rate(name)
            )
    for name in ("Unet", "Linknet", "DeepLabV3", "DeepLabV3Plus"):
        yield Entry("segmentation", f"{name} on resnet18", partial(_segmentation, name), 25)
    for steps, names in TIMM.items():
        for name in names:
            yield Entry("images, timm", f"timm {name}", partial(_timm, name), steps, _rate(name))
