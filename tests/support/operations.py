"""Cases of single operations: between two layers, or with weights of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from support.casework import Case, between, weights
from support.models import Weights

HALF = torch.tensor([0.5, -2.0, 0.0, 3.0], dtype=torch.float64)
MASK = torch.tensor([True, False, True, True])
INDEX = torch.tensor([2, 0, 3])
PLACES = torch.tensor([2, 0, 2, 1])
MIX = torch.tensor([[1.0, 2.0], [0.5, -1.0], [0.0, 3.0]], dtype=torch.float64)


def in_place(change: Callable[[Tensor], Any]) -> Callable[[Tensor], Tensor]:
    """An operation that changes a copy of its operand."""

    def apply(h: Tensor) -> Tensor:
        copy = h.clone()
        result = change(copy)
        return copy if result is None else result

    return apply


def augmented(name: str, value: Any) -> Callable[[Tensor], Tensor]:
    return lambda h: getattr(h.clone(), name)(value)


def halves(h: Tensor) -> tuple[Tensor, Tensor]:
    return h[:, :2], h[:, 2:]


def collected(h: Tensor) -> Tensor:
    """Entries written into an empty tensor one by one."""
    out = torch.empty(h.shape[0], 4, 2, dtype=h.dtype)
    for j in range(4):
        out[:, j, 0] = h[:, j]
        out[:, j, 1] = 0.5 * h[:, 3 - j]
    return out


# On four units.
VECTOR_OPERATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "relu written as clamp": lambda h: h.clamp(min=0),
    "relu written as clamp_min": lambda h: torch.clamp_min(h, 0),
    "relu written as clip": lambda h: h.clip(0),
    "relu written as threshold": lambda h: F.threshold(h, 0, 0),
    "absolute values": lambda h: torch.abs(h).absolute(),
    "leaky relu": lambda h: F.leaky_relu(h, 0.3),
    "leaky relu, in place": in_place(lambda h: F.leaky_relu(h, 0.3, True)),
    "dropouts": lambda h: F.alpha_dropout(F.dropout(h, 0.5, False), 0.5, False),
    "feature dropouts": lambda h: torch.feature_alpha_dropout(
        torch.feature_dropout(h, 0.5, False), 0.5, False
    ),
    "copies": lambda h: h.contiguous().clone().detach().data.cpu().requires_grad_(),
    "casts": lambda h: h.to(torch.float64).double().type(torch.float64).type_as(h),
    "there and back": lambda h: h.float().half().bfloat16().to("cpu", h.dtype),
    "sign changes": lambda h: -h.neg().negative().positive(),
    "add": lambda h: torch.add(h, h.flip(1), alpha=0.5),
    "plus": lambda h: h + h.flip(1),
    "constant plus": lambda h: 0.5 + h,
    "plus a constant": lambda h: h + HALF,
    "plus in place": in_place(lambda h: h.__iadd__(HALF)),
    "sub": lambda h: torch.sub(h, h.flip(1), alpha=2),
    "subtract": lambda h: torch.subtract(h, HALF),
    "minus": lambda h: h - h.roll(1, 1),
    "constant minus": lambda h: 1.5 - h,
    "minus in place": in_place(lambda h: h.__isub__(0.5)),
    "rsub": lambda h: torch.rsub(h, 1.5, alpha=2),
    "mul": lambda h: h.mul(HALF),
    "multiply": lambda h: torch.multiply(h, 3),
    "times": lambda h: h * -0.5,
    "constant times": lambda h: 2 * h,
    "times in place": augmented("__imul__", 3.0),
    "div": lambda h: h.div(4),
    "divide": lambda h: torch.divide(h, 2.0),
    "true divide": lambda h: torch.true_divide(h, 3),
    "over": lambda h: h / torch.tensor([1.0, 2.0, 4.0, 8.0], dtype=h.dtype),
    "over in place": augmented("__itruediv__", 3.0),
    "lerp": lambda h: torch.lerp(h, h.flip(1), 0.25),
    "lerp, entry by entry": lambda h: h.lerp(h.roll(1, 1), HALF),
    "sum": lambda h: h.sum(1, keepdim=True),
    "sum along an axis": lambda h: torch.sum(h, axis=1, keepdims=True),
    "mean": lambda h: h.mean(-1, keepdim=True),
    "masked fill": lambda h: h.masked_fill(MASK, 0.0),
    "where": lambda h: torch.where(MASK, h, 0.5 * h.flip(1)),
    "flip": lambda h: torch.flip(h, (1,)),
    "fliplr and flipud": lambda h: h.fliplr().t().flipud().t(),
    "roll": lambda h: h.roll(1, dims=1),
    "repeat and tile": lambda h: h.repeat(1, 2).tile((1, 2)),
    "repeat interleave": lambda h: h.repeat_interleave(2, dim=1),
    "index select": lambda h: h.index_select(1, INDEX),
    "index": lambda h: h[:, INDEX],
    "gather": lambda h: h.gather(1, INDEX.expand(h.shape[0], -1)),
    "take along": lambda h: torch.take_along_dim(h, INDEX[None], 1),
    "expand": lambda h: h.unsqueeze(2).expand(-1, -1, 2),
    "expand as": lambda h: h[..., None].expand_as(torch.zeros(h.shape[0], 4, 3)),
    "broadcast to": lambda h: torch.broadcast_to(h[:, None], (h.shape[0], 2, 4)),
    "cat": lambda h: torch.cat([h, h[:, :1], torch.ones(h.shape[0], 1, dtype=h.dtype)], 1),
    "concat": lambda h: torch.concat(halves(h), dim=-1),
    "concatenate": lambda h: torch.concatenate([h, torch.zeros_like(h)], dim=1),
    "stack": lambda h: torch.stack([h, 2 * h], dim=2),
    "hstack": lambda h: torch.hstack(halves(h)),
    "vstack": lambda h: torch.vstack([h.t(), h.t()]).t(),
    "dstack": lambda h: torch.dstack(halves(h)),
    "split": lambda h: torch.cat(h.split(3, dim=1)[::-1], 1),
    "split with sizes": lambda h: torch.cat(h.split_with_sizes([1, 3], dim=1)[::-1], 1),
    "chunk": lambda h: torch.cat(h.chunk(2, dim=1)[::-1], 1),
    "tensor split": lambda h: h.tensor_split((1, 3), dim=1)[1],
    "unbind": lambda h: torch.stack(h.unbind(1)[1:], 1),
    "narrow and select": lambda h: torch.cat([h.narrow(1, 1, 2), h.select(1, 0)[:, None]], 1),
    "sliding windows": lambda h: h.unfold(1, 2, 1),
    "amax and amin": lambda h: torch.cat(
        [h.amax(1, keepdim=True), h[:, :2].amax(dim=-1)[:, None]], 1
    ),
    "max with its place": lambda h: torch.stack(
        [h.max(1).values, h.max(dim=1)[0], h[:, 2:].max(1)[0]], 1
    ),
    "running sum": lambda h: torch.cumsum(h, 1),
    "differences": lambda h: torch.diff(h, dim=1),
    "hsplit": lambda h: torch.cat(h.hsplit(2)[::-1], 1),
    "index add": lambda h: torch.zeros(h.shape[0], 3, dtype=h.dtype).index_add(
        1, PLACES, h, alpha=-2
    ),
    "index add, in place": lambda h: torch.ones(h.shape[0], 3, dtype=h.dtype).index_add_(
        1, PLACES, h
    ),
    "scatter add": lambda h: torch.zeros(h.shape[0], 3, dtype=h.dtype).scatter_add_(
        1, PLACES.expand_as(h), h
    ),
    "scatter reduce": lambda h: h.new_zeros(h.shape[0], 3).scatter_reduce(
        1, PLACES.expand_as(h), h, "sum"
    ),
    "padding": lambda h: F.pad(h, (1, 2)),
    "written entry by entry": collected,
    "in-place unit": in_place(torch.relu_),
    "constants after its fashion": lambda h: (
        h * HALF.float().to(h) + torch.ones(1, 4).type_as(h).expand_as(h)
    ),
}

# On more dimensions.
SHAPED_OPERATIONS: dict[str, tuple[Callable[[Tensor], Tensor], tuple[int, ...]]] = {
    "reshapes": (lambda h: h.reshape(-1, 4).view(-1, 2, 2).flatten(1).unflatten(1, (2, 2)), (2, 2)),
    "reshapes like another": (lambda h: h.view_as(h.flatten(1)).reshape_as(h), (2, 2)),
    "permutations": (
        lambda h: h.permute(0, 2, 1).transpose(1, 2).swapaxes(1, 2).swapdims(1, 2),
        (2, 3),
    ),
    "moved axes": (lambda h: torch.moveaxis(h.movedim(1, 2), 1, 2).mT, (2, 3)),
    "diagonal": (lambda h: h.diagonal(dim1=1, dim2=2), (2, 2)),
    "padding by reflection": (lambda h: F.pad(h, (1, 1), mode="reflect"), (1, 4)),
    "padding round": (lambda h: F.pad(h, (1, 1), mode="circular"), (1, 4)),
    "nearest upsampling": (lambda h: F.interpolate(h, scale_factor=2), (2, 2)),
    "rot90": (lambda h: h.rot90(1, (1, 2)), (2, 3)),
    "splits": (
        lambda h: torch.cat([*h.swapdims(0, 1).vsplit(2)[1].swapdims(0, 1).dsplit(2)], 1),
        (2, 4),
    ),
    "triangles": (lambda h: h.tril(1).triu(), (3, 3)),
    "linear upsampling": (lambda h: F.interpolate(h, scale_factor=2, mode="linear"), (2, 3)),
    "bilinear resizing": (
        lambda h: F.interpolate(h, (4, 2), mode="bilinear", align_corners=True),
        (1, 3, 3),
    ),
    "bicubic upsampling": (
        lambda h: F.interpolate(h, scale_factor=(1.5, 2), mode="bicubic"),
        (1, 2, 3),
    ),
    "trilinear upsampling": (lambda h: F.interpolate(h, size=3, mode="trilinear"), (1, 2, 1, 2)),
    "area resizing": (lambda h: F.interpolate(h, size=2, mode="area"), (1, 5)),
    "pixel shuffles": (lambda h: F.pixel_unshuffle(F.pixel_shuffle(h, 2), 2), (4, 1, 1)),
    "channel shuffle": (lambda h: F.channel_shuffle(h, 2), (4, 2, 1)),
    "channel dropouts": (lambda h: F.dropout1d(h, 0.5, False), (2, 2)),
    "spatial dropouts": (
        lambda h: F.dropout3d(F.dropout2d(h, 0.5, False)[:, :, None], 0.5, False),
        (2, 2, 1),
    ),
    "max pool 1d": (lambda h: F.max_pool1d(h, 3, 2, 1), (2, 5)),
    "max pool 1d, ceil": (lambda h: F.max_pool1d(h, 2, ceil_mode=True), (1, 5)),
    "max pool 1d, dilated": (lambda h: F.max_pool1d(h, 2, stride=1, dilation=2), (1, 5)),
    "max pool 2d": (lambda h: F.max_pool2d(h, (2, 1), (1, 2)), (1, 3, 3)),
    "max pool 3d": (lambda h: F.max_pool3d(h, 2), (1, 2, 2, 3)),
    "average pool 1d": (
        lambda h: F.avg_pool1d(h, 3, 2, padding=1, count_include_pad=False),
        (2, 4),
    ),
    "average pool 2d": (lambda h: F.avg_pool2d(h, 2, 1, 1), (1, 2, 3)),
    "average pool 2d, ceil": (
        lambda h: F.avg_pool2d(h, 2, ceil_mode=True, divisor_override=3),
        (1, 3, 3),
    ),
    "average pool 3d": (lambda h: F.avg_pool3d(h, (1, 2, 2)), (1, 1, 2, 4)),
    "adaptive average pool 1d": (lambda h: F.adaptive_avg_pool1d(h, 3), (1, 5)),
    "adaptive average pool 2d": (lambda h: F.adaptive_avg_pool2d(h, (1, 2)), (1, 2, 3)),
    "adaptive average pool 3d": (lambda h: F.adaptive_avg_pool3d(h, 1), (2, 1, 2, 2)),
    "adaptive max pool 1d": (lambda h: F.adaptive_max_pool1d(h, 3), (1, 5)),
    "adaptive max pool 2d": (lambda h: F.adaptive_max_pool2d(h, (1, 2)), (1, 2, 3)),
    "adaptive max pool 3d": (lambda h: F.adaptive_max_pool3d(h, 1), (2, 1, 2, 2)),
    "a fixed matrix": (lambda h: torch.matmul(h, MIX), (2, 3)),
}

# Parameters as weights, in every spelling.
WEIGHTED_OPERATIONS: dict[str, Case] = {
    "matmul": weights(lambda m, x: torch.matmul(torch.matmul(x, m.a).relu(), m.b), (1, 2), a=(2, 3),
                      b=(3, 1)),
    "at, transposed weights": weights(lambda m, x: (x @ m.a.T).relu() @ m.b.mT, (1, 2), a=(3, 2),
                                      b=(1, 3)),
    "at from the right": weights(lambda m, x: m.a.__rmatmul__(x).relu() @ m.b, (1, 2), a=(2, 3),
                                 b=(3, 1)),
    "weights on the left": weights(lambda m, x: m.b @ (m.a @ x).relu(), (2, 1), batch=1, a=(3, 2),
                                   b=(1, 3)),
    "mm": weights(lambda m, x: torch.mm(x.mm(m.a).relu(), m.b), (1, 2), a=(2, 3), b=(3, 1)),
    "mv and dot": weights(lambda m, x: torch.dot(m.a.mv(x).relu(), m.b)[None], (2,), batch=None,
                          a=(3, 2), b=(3,)),
    "bmm": weights(
        lambda m, x: torch.bmm(torch.bmm(x.transpose(0, 1), m.a).relu(), m.b).transpose(0, 1),
        (1, 2, 3), a=(2, 3, 2), b=(2, 2, 1),
    ),
    "batched product, broadcast": weights(lambda m, x: (x @ m.a).relu() @ m.b, (1, 1, 1, 3),
        a=(2, 3, 2), b=(2, 1)),
    "inner": weights(lambda m, x: torch.inner(torch.inner(x, m.a).relu(), m.b), (1, 2), a=(3, 2),
                     b=(2, 3)),
    "addmm": weights(
        lambda m, x: torch.addmm(m.c, x.addmm(x, m.a).relu(), m.b), (1, 2), a=(2, 2), b=(2, 1),
        c=(1,)
    ),
    "addmm with factors": Case(
        partial(Weights, lambda m, x: torch.addmm(m.b, x, m.a, beta=0.5, alpha=-2), a=(2, 2),
                b=(1, 2)), ((1, 2),),
        twin=partial(Weights, lambda m, x: 0.25 * m.b + 4 * x @ m.a, a=(2, 2), b=(1, 2)),
    ),
    "addmv": weights(lambda m, x: torch.addmv(m.c, m.a, x).relu() * m.b, (2,), batch=None, a=(3, 2),
                     b=(3,), c=(3,)),
    "baddbmm": weights(
        lambda m, x: torch.baddbmm(m.c, x, m.a.expand(x.shape[0], -1, -1)).relu() @ m.b,
        (1, 2, 3), a=(1, 3, 2), b=(2, 1), c=(1, 1, 2),
    ),
    "einsum": weights(
        lambda m, x: torch.einsum("bho,hop->bp", torch.einsum("bi,hio", x, m.a).relu(), m.b),
        (1, 2), a=(2, 2, 3), b=(2, 3, 1),
    ),
    "einsum with dots": weights(
        lambda m,
        x: torch.einsum("...i,oi->...o", torch.einsum("b...i, oi -> b...o", [x, m.a]).relu(), m.b),
        (1, 2, 2), a=(3, 2), b=(1, 3),
    ),
    "einsum by index lists": weights(
        lambda m,
        x: torch.einsum(torch.einsum(x, [0, 1], m.a, [1, 2], [0, 2]).relu(), [0, 1], m.b, [1], [0]),
        (1, 2), a=(2, 3), b=(3,),
    ),
    "units on constants": weights(
        lambda m, x: x @ m.a + F.prelu(torch.ones(1, 2, dtype=x.dtype), m.slope) @ m.b,
        (1, 2), a=(2, 1), b=(2, 1), slope=(1,),
    ),
    "without a batch": Case(
        partial(Weights, lambda m, x: (x.view(2, 2).ravel() * m.a).mean() + m.b.t().T.sum(), a=(4,),
                b=(2, 2)),
        ((4,),), None,
        twin=partial(Weights, lambda m, x: (x * m.a).sum() / 16 + m.b.sum(), a=(4,), b=(2, 2)),
    ),
    "a weight that is a sum": weights(
        lambda m, x: F.linear(F.linear(x, m.a + m.b, bias=m.c).relu(), m.d),
        (1, 2), a=(3, 2), b=(3, 2), c=(3,), d=(1, 3),
    ),
    "a weight that is a product": weights(
        lambda m, x: x @ (m.a @ m.b) * m.c.sum(0), (1, 2), a=(2, 3), b=(3, 2), c=(2, 2)
    ),
    "slices of one weight": weights(lambda m, x: torch.relu(x @ m.a[:2]) @ m.a[2:, :1], (1, 2),
                                    a=(5, 3)),
    "weights joined": weights(
        lambda m, x: F.linear(x, torch.cat([m.a, m.b])).relu() @ torch.stack([m.c, m.c.flip(0)], 1),
        (1, 2), a=(1, 2), b=(2, 2), c=(3,),
    ),
    "weights in another order": weights(lambda m, x: (x @ m.a[[0, 2, 1, 3]]).relu() @ m.b, (1, 4),
        a=(4, 3), b=(3, 1)),
    "masked weights": weights(
        lambda m,
        x: F.linear(F.linear(x, m.a.masked_fill(~MASK[:, None], 0.0)).relu(),
                    torch.where(MASK, m.b, 0.0)),
        (1, 2), a=(4, 2), b=(1, 4),
    ),
    "the larger of two": Case(
        partial(Weights, lambda m,
                x: torch.maximum(torch.fmax(x @ m.a, x @ m.b), torch.max(x @ m.b, HALF)) @ m.c,
                a=(2, 4), b=(2, 4), c=(4, 1)), ((1, 2),),
        twin=partial(Weights, lambda m, x: (x @ m.a + 2 * x @ m.b + HALF**2) @ m.c, a=(2, 4),
                     b=(2, 4), c=(4, 1)),
    ),
    "the smaller of two": Case(
        partial(Weights, lambda m,
                x: torch.minimum(torch.fmin(x @ m.a, x @ m.b), torch.min(x @ m.b, x @ m.a)) @ m.c,
                a=(2, 4), b=(2, 4), c=(4, 1)), ((1, 2),),
        twin=partial(Weights, lambda m, x: 2 * (x @ m.a + x @ m.b) @ m.c, a=(2, 4), b=(2, 4),
                     c=(4, 1)),
    ),
    "the smallest": Case(
        partial(Weights, lambda m,
                x: torch.stack([(x @ m.a).amin(1), (x @ m.a).min(1)[0]], 1) @ m.b,
                a=(2, 4), b=(2, 1)), ((1, 2),),
        twin=partial(Weights, lambda m, x: (x @ m.a).sum(1, keepdim=True).expand(-1, 2) @ m.b,
                     a=(2, 4), b=(2, 1)),
    ),
    "the largest of all": Case(
        partial(Weights, lambda m, x: (m.a @ x).max()[None] * m.b, a=(3, 2), b=(1,)), ((2,),), None,
        twin=partial(Weights, lambda m, x: (m.a @ x).sum()[None] * m.b, a=(3, 2), b=(1,)),
    ),
    "weights under constraints": Case(
        partial(Weights, lambda m, x: F.linear(F.linear(x, m.a.abs()).relu(), m.b.relu() * HALF),
                a=(4, 2), b=(2, 4)),
        ((1, 2),),
        twin=partial(Weights, lambda m, x: x @ m.a.T @ (m.b * HALF**2).T, a=(4, 2), b=(2, 4)),
    ),
    "weights under their own norm": Case(
        partial(Weights, lambda m, x: F.linear(x, torch._weight_norm(m.v, m.g, 0)).relu() @ m.b,
                v=(4, 2), g=(4, 1), b=(4, 1)), ((1, 2),),
        twin=partial(Weights, lambda m,
                     x: x @ (m.g * m.v / m.v.detach().sum(1, keepdim=True)).T @ m.b,
                     v=(4, 2), g=(4, 1), b=(4, 1)),
    ),
    "elementwise weights": weights(lambda m, x: (x * m.a + m.b).relu() * m.c, (1, 2, 3), a=(3,),
                                   b=(2, 1), c=(2, 3)),
    "a weight shown twice by one view": weights(
        lambda m, x: (x @ m.a.expand(2, 3).T).relu() @ m.b, (1, 3), a=(3,), b=(2, 1)
    ),
    "prelu": Case(
        partial(Weights, lambda m, x: F.prelu(F.linear(x, m.a), m.slope) @ m.b, a=(6, 2), b=(6, 1),
                slope=(6,)),
        ((1, 2),),
        twin=partial(Weights, lambda m, x: x @ m.a.T * m.slope.clamp(min=1) @ m.b, a=(6, 2),
                     b=(6, 1), slope=(6,)),
    ),
}  # fmt: skip


def convolutions() -> Iterator[tuple[str, Case]]:
    """Every convolution before a linear layer: strided and padded, grouped, transposed."""
    for spatial, shape in ((1, (4,)), (2, (3, 3)), (3, (2, 3, 2))):
        conv, transposed = getattr(nn, f"Conv{spatial}d"), getattr(nn, f"ConvTranspose{spatial}d")
        layers = {
            f"conv{spatial}d": partial(conv, 2, 2, 2, padding=1, stride=2),
            f"conv{spatial}d, grouped and dilated": partial(
                conv, 2, 4, 3, groups=2, dilation=2, padding="same"
            ),
            f"conv_transpose{spatial}d": partial(
                transposed, 2, 2, 2, stride=2, groups=2, output_padding=1
            ),
        }
        for name, layer in layers.items():
            yield name, Case(partial(before_linear, layer, (1, 2, *shape)), ((1, 2, *shape),))


def before_linear(layer: Callable[[], nn.Module], shape: tuple[int, ...]) -> nn.Sequential:
    first = layer()
    return nn.Sequential(
        first, nn.ReLU(), nn.Flatten(), nn.Linear(first(torch.zeros(shape)).numel(), 1)
    )


OPERATIONS: dict[str, Case] = {
    **{name: between(operation) for name, operation in VECTOR_OPERATIONS.items()},
    **{name: between(operation, *shape) for name, (operation, shape) in SHAPED_OPERATIONS.items()},
    **WEIGHTED_OPERATIONS,
    **dict(convolutions()),
}
