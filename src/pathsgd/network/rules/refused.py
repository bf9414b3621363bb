"""Operations that are known not to be path networks, and what to do instead.

Everything unknown is refused too.
"""

from pathsgd.network.rules.base import refuse

refuse(
    "it saturates, so it is not positively homogeneous and node-wise rescaling does not hold; "
    "use relu. Where it comes last, leave it to the loss (binary_cross_entropy_with_logits), or"
    " measure what comes before it: output='name of that layer'",
    "tanh sigmoid logsigmoid softsign hardtanh hardsigmoid relu6 clamp_max tanhshrink erf",
)
refuse(
    "it is not positively homogeneous (its shape depends on the scale of its input); use relu "
    "or leaky_relu",
    "gelu elu selu celu silu mish softplus hardswish softshrink hardshrink exp log log1p pow",
    "__pow__ __rpow__ __ipow__ square sqrt rsqrt sin cos rrelu",
)
refuse(
    "dividing by an activation or a parameter is not a path; divide by a constant or multiply",
    "reciprocal __rtruediv__ __rdiv__",
)
refuse(
    "gates multiply activations with activations; use torch.nn.RNN(nonlinearity='relu')",
    "lstm gru lstm_cell gru_cell",
)
refuse(
    "tanh saturates; use nonlinearity='relu'",
    "rnn_tanh rnn_tanh_cell",
)
refuse(
    "it divides activations by a sum of activations, which no path does. Where it comes last, "
    "leave it to the loss, or measure what comes before it: output='name of that layer'",
    "softmax log_softmax softmin gumbel_softmax",
)
refuse(
    "it belongs to the loss; measure what the loss is taken of: output='name of that layer'",
    "cross_entropy nll_loss mse_loss l1_loss smooth_l1_loss binary_cross_entropy",
    "binary_cross_entropy_with_logits kl_div linear_cross_entropy",
)
refuse(
    "it divides by statistics of the activations; use batch_norm in inference form or no "
    "normalisation",
    "layer_norm group_norm instance_norm rms_norm normalize local_response_norm",
)
refuse(
    "it is a root or a sum of squares of activations, not a sum over paths; use abs and sum or "
    "mean, or no statistics",
    "std var std_mean var_mean norm linalg.vector_norm linalg.norm linalg.matrix_norm dist",
    "cdist pairwise_distance cosine_similarity",
)
refuse(
    "products of two activations are not paths",
    "bilinear scaled_dot_product_attention multi_head_attention_forward",
)
refuse(
    "derivatives taken inside forward are not paths; take them in the loss, or measure with "
    "output= what does not depend on them",
    "autograd.grad",
)
refuse(
    "it sums over its batch; write it as matmul and sum",
    "addbmm",
)
refuse(
    "it orders entries by value; only the largest or smallest of some is covered (max, amax, "
    "max-pools)",
    "topk sort argmax argmin argsort kthvalue median mode cummax cummin",
)
refuse(
    "indices depend on values; pool without return_indices",
    "max_pool1d_with_indices max_pool2d_with_indices max_pool3d_with_indices",
    "adaptive_max_pool1d_with_indices adaptive_max_pool2d_with_indices",
    "adaptive_max_pool3d_with_indices fractional_max_pool1d_with_indices",
    "fractional_max_pool2d_with_indices fractional_max_pool3d_with_indices",
)
refuse(
    "a value of the network must not steer its forward pass or leave it; branch on shapes or on"
    " constants instead",
    "item tolist numpy __bool__ __float__ __int__ __index__ __array__ __contains__ gt lt ge le",
    "eq ne __gt__ __lt__ __ge__ __le__ __eq__ __ne__ isnan isinf isfinite any all equal",
    "allclose nonzero count_nonzero is_nonzero greater less",
)
refuse(
    "its short name means another operation to the rules; use the form in torch.nn.functional",
    "torch.batch_norm torch.embedding torch.embedding_bag",
)
refuse(
    "patches as columns are not covered; write the layer as a convolution",
    "functional.unfold fold",
)
