"""Which calls draw random numbers, by the names of records and of torch's functions."""

from __future__ import annotations

DRAWS = frozenset((
    "random_seeds", "rand", "randn", "randint", "rand_like", "randn_like", "randint_like", "randperm", "bernoulli",
    "multinomial", "normal", "uniform", "exponential", "geometric", "cauchy", "log_normal", "native_dropout",
    "rrelu_with_noise", "poisson", "binomial", "_standard_gamma", "_sample_dirichlet", "rrelu", "gumbel_softmax",
    "dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout", "feature_dropout",
    "fractional_max_pool2d", "fractional_max_pool3d", "svd_lowrank", "pca_lowrank",
))  # fmt: skip
"""Those with a probability, or a flag that says training, only where these say so."""

DRAWS_IN_PLACE = frozenset(
    ("uniform_", "normal_", "exponential_", "geometric_", "cauchy_", "log_normal_", "random_", "bernoulli_", "kaiming_uniform_")
)
"""What is in the tensor before counts for nothing. Some are functions of ``torch.nn.init``, too."""

MAY_DRAW = DRAWS | DRAWS_IN_PLACE | frozenset(("multi_head_attention_forward",))

RECURRENT = frozenset(("lstm", "gru", "rnn_tanh", "rnn_relu"))
"""These draw, too, where they drop out; torch's vmap takes no notice of it where all examples share the arguments."""

FACTORIES = frozenset(("rand", "randn", "randint", "randperm"))
"""Made of no tensor, and always drawn."""

PROBABILITY = {
    "dropout": "p",
    "dropout1d": "p",
    "dropout2d": "p",
    "alpha_dropout": "p",
    "scaled_dot_product_attention": "dropout_p",
}
"""The argument without which these draw nothing: of functions and of records."""
