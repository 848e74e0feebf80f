"""What autocast does to each op: torch's cast policies for CPU and CUDA, by ATen's names.

Source: the lists of ATen's ``autocast_mode.h`` and ``autocast_mode.cpp`` (torch 2.11 to 2.13), described in
https://docs.pytorch.org/docs/stable/amp.html#autocast-op-reference. An op that no list names runs in the dtypes it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

from tinycompile.base import shapes, torch_private


class Policy(Enum):
    """How an op's floating-point tensors (float64 apart) are cast before it runs."""

    LOWER = "casts to the region's lower precision"
    FP32 = "casts to float32"
    FP32_RESULT = "casts nothing, and sets the dtype argument to float32 unless the caller did"
    PROMOTE = "casts to the widest of its tensors"
    BANNED = "refuses the call"


def _table(**names: str) -> dict[str, Policy]:
    return {name: Policy[policy] for policy, listed in names.items() for name in listed.split()}


CPU = _table(
    LOWER="""
        addbmm addmm baddbmm bmm conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d convolution
        linalg_vecdot linear matmul mm mkldnn_rnn_layer prelu scaled_dot_product_attention""",
    FP32="""
        adaptive_avg_pool3d adaptive_max_pool3d avg_pool3d binary_cross_entropy binary_cross_entropy_with_logits cdist cholesky
        cholesky_inverse cholesky_solve cosine_embedding_loss cross_entropy cross_entropy_loss ctc_loss
        fake_quantize_per_tensor_affine fft_fft fft_fft2 fft_fftn fft_hfft fft_ifft fft_ifft2 fft_ifftn fft_ihfft fft_irfft
        fft_irfft2 fft_irfftn fft_rfft fft_rfft2 fft_rfftn fractional_max_pool2d fractional_max_pool3d geqrf grid_sampler
        grid_sampler_2d grid_sampler_3d hinge_embedding_loss huber_loss inverse kl_div l1_loss linalg_cholesky
        linalg_cholesky_ex linalg_cond linalg_eig linalg_eigh linalg_eigvals linalg_eigvalsh linalg_householder_product
        linalg_inv linalg_inv_ex linalg_lstsq linalg_matrix_rank linalg_qr linalg_solve linalg_svd linalg_svdvals
        linalg_tensorinv linalg_tensorsolve lu_solve margin_ranking_loss max_pool3d max_unpool2d max_unpool3d mse_loss
        multi_margin_loss multilabel_margin_loss nanquantile nll_loss nll_loss2d orgqr ormqr pinverse poisson_nll_loss polar
        prod qr quantile reflection_pad1d reflection_pad2d replication_pad1d replication_pad2d replication_pad3d
        smooth_l1_loss soft_margin_loss stft svd trace triangular_solve triplet_margin_loss view_as_complex""",
    PROMOTE="cat index_copy stack",
)
CUDA = _table(
    LOWER="""
        addbmm addmm addmv addr baddbmm bmm chain_matmul conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d
        conv_transpose3d convolution cudnn_convolution cudnn_convolution_transpose einsum gru_cell linalg_multi_dot
        linalg_vecdot linear lstm_cell matmul mm mv prelu rnn_relu_cell rnn_tanh_cell scaled_dot_product_attention""",
    FP32="""
        acos asin binary_cross_entropy_with_logits cdist cosh cosine_embedding_loss cosine_similarity dist erfinv
        exp expm1 group_norm hinge_embedding_loss huber_loss kl_div l1_loss layer_norm log log10 log1p log2 logsumexp
        margin_ranking_loss mse_loss multi_margin_loss multilabel_margin_loss native_layer_norm nll_loss nll_loss2d
        nuclear_norm pdist poisson_nll_loss pow pow_scalar reciprocal renorm rms_norm rsqrt sinh smooth_l1_loss
        soft_margin_loss softplus tan triplet_margin_loss upsample_bicubic2d upsample_bilinear2d upsample_linear1d
        upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_trilinear3d""",
    FP32_RESULT="cumprod cumsum linalg_matrix_norm linalg_vector_norm log_softmax norm prod softmax sum",
    PROMOTE="""
        addcdiv addcmul atan2 bilinear cross dot grid_sampler index_put scatter_add tensordot vdot""",
    BANNED="binary_cross_entropy",
)
for _late in ("rms_norm",):  # not in the lists of each torch from 2.11 on
    if torch_private.has_kernel(_late, "AutocastCUDA") is False:
        del CUDA[_late]
# Records of functions that torch composes of ops with a policy: what these come to.
CPU |= _table(
    LOWER="einsum", FP32="adaptive_max_pool3d_with_indices masked_prod", PROMOTE="column_stack dstack hstack vstack"
)  # fmt: skip
CUDA |= _table(
    FP32="""
        cross_entropy cumulative_trapezoid local_response_norm masked_prod multilabel_soft_margin_loss mvlgamma normalize
        pairwise_distance square trace trapezoid""",
    FP32_RESULT="softmin",
)
POLICIES = {"cpu": CPU, "cuda": CUDA}


_PADS = {"reflect": "reflection", "replicate": "replication"}


def _pad(x: Any, pad: Sequence[Any], mode: str = "constant", value: Any = None) -> str:
    return f"{_PADS.get(mode, mode)}_pad{len(pad) // 2}d"


def _interpolate(
    x: Any, size: Any = None, scale_factor: Any = None, mode: str = "nearest", align_corners: Any = None,
    recompute_scale_factor: Any = None, antialias: bool = False,
) -> str:  # fmt: skip
    n = len(x.shape) - 2
    return f"adaptive_avg_pool{n}d" if mode == "area" else f"{'_' * antialias}upsample_{mode}{n}d"


def _sum_to_size(x: Any, size: Sequence[Any]) -> str:
    return "sum_to_size" if len(x.shape) == len(size) and all(map(shapes.same, x.shape, size)) else "sum"


def _ldexp(x: Any, other: Any) -> str:
    return "pow" if other.dtype.is_floating_point else "mul"  # of two integers the power is none of a region's concern


# Which op of ATen's a record's call is, as far as regions go.
_CALLS: dict[str, Callable[..., str]] = {
    "pad": _pad,
    "interpolate": _interpolate,
    "sum_to_size": _sum_to_size,
    "ldexp": _ldexp,
}


def policy(op_name: str, args: Sequence[Any], kind: str) -> Policy | None:
    """The policy of a record's call on a device of type ``kind``."""
    if kind == "cpu" and op_name == "einsum" and not _ends_in_a_product(args[0]):
        return None
    return POLICIES[kind].get(_CALLS[op_name](*args) if op_name in _CALLS else op_name)


# On a CPU torch's vmap composes these of parts that have no policy, before a region sees them.
_AS_GIVEN = """
    adaptive_avg_pool3d binary_cross_entropy_with_logits conv1d conv2d conv3d conv_transpose1d conv_transpose2d
    conv_transpose3d cosine_embedding_loss cross_entropy hinge_embedding_loss l1_loss linalg_vecdot max_pool3d nll_loss
    poisson_nll_loss prelu scaled_dot_product_attention
"""
_BATCHED_CPU: dict[str, Policy | None] = {**dict.fromkeys(_AS_GIVEN.split()), **_table(LOWER="dot vdot")}


def policy_under_vmap(op_name: str, args: Sequence[Any], kind: str) -> Policy | None:
    """The same of a call on examples."""
    if kind == "cpu" and op_name in _BATCHED_CPU:
        return _BATCHED_CPU[op_name]
    return policy(op_name, args, kind)


def _ends_in_a_product(equation: str) -> bool:
    """Whether torch's last step for an einsum is a matrix product, which has a policy, and no ``mul``: a letter that is summed
    over is on both of its sides."""
    terms, arrow, output = equation.replace(" ", "").partition("->")
    letters, (*before, last) = terms.replace(",", ""), terms.split(",")
    kept = set(output) if arrow else {c for c in letters if letters.count(c) == 1}
    return bool(set("".join(before)) & set(last) - kept - {"."})


# Functions without a policy of their own that torch composes of ops that have one.
_COMPOSED = """
    bilinear chain_matmul corrcoef cosine_similarity cov gru gru_cell inner lstm lstm_cell matrix_norm matrix_power multi_dot
    multi_head_attention_forward norm nuclear_norm rnn_relu rnn_relu_cell rnn_tanh rnn_tanh_cell tensordot vecdot
"""
COMPOSED = frozenset(_COMPOSED.split())

BANNED_MESSAGE = """torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.
Many models use a sigmoid layer right before the binary cross entropy layer.
In this case, combine the two layers using torch.nn.functional.binary_cross_entropy_with_logits
or torch.nn.BCEWithLogitsLoss.  binary_cross_entropy_with_logits and BCEWithLogits are
safe to autocast."""
