"""Lines that start a collective, as compilers for TPUs and GPUs spell them."""

from gradsparse.traffic import instructions
from gradsparse.traffic import participants
import pytest

GROUPS = 'replica_groups={{0,1,2},{3,4,5}}'


@pytest.mark.parametrize(
  'line, kind, nbytes',
  [
    # For TPUs: two numbers more.
    (
      '(f32[6]{0:T(256)}, f32[6]{0:T(256)S(1)}, u32[]{:S(2)}, u32[]{:S(2)}) '
      'collective-permute-start(%p), source_target_pairs={{0,1},{1,2}}',
      'permute',
      24,
    ),
    # For GPUs.
    (
      '(f32[6]{0}, f32[6]{0}) collective-permute-start(%p), '
      'source_target_pairs={{0,1}}',
      'permute',
      24,
    ),
    (
      '((f32[6]{0}, u8[3]{0}), (f32[6]{0}, u8[3]{0})) '
      'collective-permute-start(%p, %q), source_target_pairs={{0,1}}',
      'permute',
      27,
    ),
    (
      '((f32[2]{0}, u8[3]{0}), (f32[6]{0}, u8[9]{0})) all-gather-start(%p), '
      + GROUPS,
      'all_gather',
      11,
    ),
    ('f32[6]{0} all-reduce-start(%p), ' + GROUPS, 'all_reduce', 24),
    (
      '(f32[6]{0}, f32[2]{0}) all-reduce-start(%p, %q), ' + GROUPS,
      'all_reduce',
      32,
    ),
    (
      '((f32[3,2]{1,0}), f32[3,2]{1,0}) all-to-all-start(%p), ' + GROUPS,
      'all_to_all',
      24,
    ),
    (
      '((f32[6]{0}), f32[2]{0}) reduce-scatter-start(%p), ' + GROUPS,
      'reduce_scatter',
      24,
    ),
  ],
)
def test_what_starts_has_operands_and_results(line, kind, nbytes):
  """An all-reduce's shape is that of its results alone."""
  found = instructions.parse(
    f'  %x = {line}', participants.slices_of(6, None), None
  )
  assert (found.kind, found.nbytes) == (kind, nbytes)
