"""Settings of every test: our errors raise, IRs are verified, the cache is private, and GPU tests skip without a GPU."""

from __future__ import annotations

import gc
import os
import tempfile
import zlib

import pytest
import torch

# Before the package is imported, for config reads the environment once; and child processes of tests inherit it.
_cache = tempfile.TemporaryDirectory(prefix="tinycompile-tests-")
os.environ["TINYCOMPILE_CACHE_DIR"] = _cache.name
os.environ["TINYCOMPILE_ON_ERROR"] = "raise"
os.environ["TINYCOMPILE_VERIFY"] = "1"
for _name in ("TINYCOMPILE_DUMP", "TINYCOMPILE_LOG"):
    os.environ.pop(_name, None)

from tinycompile.base import logs  # noqa: E402
from tinycompile.base.config import config  # noqa: E402

config.verify_ir = True  # also where the package was imported before


def pytest_configure(config: pytest.Config) -> None:
    """What we warn of is a fallback: a test that causes one must say so with ``pytest.warns``."""
    config.addinivalue_line("filterwarnings", "error::tinycompile.base.errors.TinycompileWarning")


GENERATED = (
    "aot/test_custom_saving.py", "aot/test_edited_behind_breaks.py", "aot/test_edited_optimizers.py",
    "aot/test_edited_outside.py", "aot/test_edited_records.py", "aot/test_edited_words.py", "aot/test_every_record.py",
    "aot/test_gradient_layouts.py", "aot/test_gradients.py", "aot/test_hooks_of_results.py", "aot/test_norm_orders.py",
    "aot/test_one_after_the_other.py", "aot/test_optimizers.py", "aot/test_reach.py", "aot/test_results_written_later.py",
    "aot/test_settings_no_numbers.py", "aot/test_symbolic_records.py", "aot/test_symbolic_tangents.py", "aot/test_undefined.py",
    "aot/test_views_written_later.py", "aot/test_written_again.py", "aot/test_written_through_another.py",
    "aot/test_written_whole.py", "capture/test_autocast.py", "capture/test_blocks_left.py", "capture/test_borrowed_names.py",
    "capture/test_break_everywhere.py", "capture/test_changed_while_iterated.py", "capture/test_changes.py",
    "capture/test_checkpoint_writes.py", "capture/test_derived_sizes.py", "capture/test_extern_sizes.py",
    "capture/test_foreach_arguments.py", "capture/test_inplace_functions.py", "capture/test_kinds_of_int_lists.py",
    "capture/test_members_of_sets.py", "capture/test_memory_formats.py", "capture/test_module_guards.py",
    "capture/test_module_state.py", "capture/test_not_differentiable.py", "capture/test_numbers_refused.py",
    "capture/test_our_factories.py", "capture/test_own_exceptions.py", "capture/test_owners_of_memory.py",
    "capture/test_replaced_tensor_attributes.py", "capture/test_result_types.py", "capture/test_sizes_of_parts.py",
    "capture/test_tensors_of_changing_numbers.py", "capture/test_torch_warnings.py", "capture/test_united_dicts.py",
    "capture/test_view_kinds.py", "capture/test_views_in_place.py", "capture/test_views_without_records.py",
    "capture/test_writes.py", "capture/test_writes_to_detached.py", "codegen/cpp/test_fetch.py", "codegen/cpp/test_groups.py",
    "codegen/cpp/test_jam.py", "codegen/cpp/test_math.py", "codegen/cpp/test_reductions.py", "codegen/cpp/test_scalars.py",
    "codegen/cpp/test_transpose.py", "codegen/triton/test_overlap.py", "codegen/triton/test_product_groups.py",
    "codegen/triton/test_product_offline.py", "codegen/triton/test_products.py", "codegen/triton/test_reductions.py",
    "codegen/triton/test_scalars.py", "codegen/triton/test_shared_rows.py", "codegen/triton/test_skinny.py",
    "codegen/triton/test_skinny_rows.py", "eager/test_arguments.py", "eager/test_autocast.py", "eager/test_autograd_records.py",
    "eager/test_device_outs.py", "eager/test_edited_records.py", "eager/test_error_words.py", "eager/test_layouts.py",
    "eager/test_named_results.py", "eager/test_overlapping_writes.py", "eager/test_refused_views.py", "eager/test_sparse.py",
    "eager/test_spellings.py", "eager/test_vmap.py", "eager/test_vmap_in_place.py", "eager/test_vmap_indexing.py",
    "eager/test_vmap_parts.py", "eager/test_vmap_random.py", "eager/test_vmap_ties.py", "eager/test_vmap_views.py",
    "end_to_end/test_every_record.py", "end_to_end/test_example_gradients.py", "end_to_end/test_float8.py",
    "end_to_end/test_numbers_out_of_range.py", "end_to_end/test_numerics.py", "end_to_end/test_opinfo.py",
    "end_to_end/test_overwritten_after_reductions.py", "end_to_end/test_random.py", "end_to_end/test_scatter.py",
    "end_to_end/test_transforms.py", "end_to_end/test_workloads.py", "fuse/test_every_record.py",
    "fuse/test_steps_of_halves.py", "lower/test_every_record.py", "lower/test_symbolic_records.py", "ops/test_gradients.py",
    "ops/test_other_dtypes.py", "ops/test_records.py", "ops/test_strides.py", "ops/test_what_spellings_keep.py",
    "ops/test_wrong_calls.py", "passes/test_every_decomposition.py", "passes/test_in_place.py", "passes/test_losses.py",
)  # fmt: skip  # tests from records and tables, many thousands and alike
SHARE = 8  # a run of the whole suite takes one in so many of these
WHOLE = 100  # files of tests: a run of more is one of the whole suite


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sample generated tests in a run of the whole suite, so that two cores do it in minutes; by name, so always the same ones.
    ``TINYCOMPILE_TESTS=full``, or naming a folder or file, takes all. Skip tests marked ``gpu`` where torch sees no device."""
    if os.environ.get("TINYCOMPILE_TESTS") != "full" and len({i.path for i in items}) > WHOLE:
        left = [i for i in items if _is_left_out(i)]
        config.hook.pytest_deselected(items=left)
        items[:] = [i for i in items if not _is_left_out(i)]
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a CUDA device")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)


def _is_left_out(item: pytest.Item) -> bool:
    generated = "[" in item.name and item.path.as_posix().endswith(GENERATED)
    return generated and zlib.crc32(item.name.encode()) % SHARE != 0


def pytest_unconfigure() -> None:
    """Remove the session's cache folder. What was set aside goes with the rest."""
    gc.unfreeze()
    _cache.cleanup()


@pytest.fixture(autouse=True, scope="module")
def before() -> None:
    """What was there before a file's tests is none of their garbage, and much by then: collections, of which tests of memory ask
    for hundreds, pass over it."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def seed() -> None:
    """Every test starts from the same random numbers."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def unwarned() -> None:
    """What is said once a process is said in each test that causes it, whichever tests this process ran before."""
    logs.forget()
