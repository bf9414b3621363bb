"""Operations that are known not to be path networks, and what to do instead. Everything unknown is refused too."""

from pathsgd.rules.base import refuse

refuse(
    "it saturates, so it is not positively homogeneous and node-wise rescaling does not hold; use relu",
    "tanh", "sigmoid", "logsigmoid", "softsign", "hardtanh", "hardsigmoid", "relu6", "clamp", "clip", "clamp_min",
    "clamp_max", "tanhshrink", "erf",
)  # fmt: skip
refuse(
    "it is not positively homogeneous (its shape depends on the scale of its input); use relu or leaky_relu",
    "gelu", "elu", "selu", "celu", "silu", "mish", "softplus", "hardswish", "softshrink", "hardshrink", "threshold",
    "exp", "log", "log1p", "pow", "__pow__", "square", "sqrt", "rsqrt", "reciprocal", "sin", "cos", "rrelu",
)  # fmt: skip
refuse(
    "gates multiply activations with activations; use torch.nn.RNN(nonlinearity='relu')",
    "lstm",
    "gru",
    "lstm_cell",
    "gru_cell",
)
refuse("tanh saturates; use nonlinearity='relu'", "rnn_tanh", "rnn_tanh_cell")
refuse(
    "it normalises an output distribution; keep it in the loss and measure the logits",
    "softmax", "log_softmax", "softmin", "gumbel_softmax", "cross_entropy", "nll_loss", "mse_loss",
    "linear_cross_entropy",
)  # fmt: skip
refuse(
    "it divides by statistics of the activations; use batch_norm in inference form or no normalisation",
    "layer_norm", "group_norm", "instance_norm", "rms_norm", "normalize", "local_response_norm",
)  # fmt: skip
refuse(
    "products of two activations are not paths",
    "bilinear",
    "einsum",
    "scaled_dot_product_attention",
    "multi_head_attention_forward",
)
refuse(
    "the maximum picks a path by value; only max-pools are covered",
    "max",
    "min",
    "maximum",
    "minimum",
    "amax",
    "amin",
    "topk",
    "sort",
)
refuse(
    "a value of the squared network must not steer the forward pass; branch on shapes or on constants instead",
    "item", "tolist", "__bool__", "__float__", "__int__", "__len__", "gt", "lt", "ge", "le", "eq", "ne", "__gt__",
    "__lt__", "__ge__", "__le__", "__eq__", "__ne__", "isnan", "isfinite", "any", "all", "numpy", "argmax",
)  # fmt: skip
