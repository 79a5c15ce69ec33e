"""What `gs.advise` quotes is what the records say."""

import pathlib

from gradsparse.advise import candidates
from gradsparse.advise import recorded
import pytest
from tests.bad_input import programs

_ROOT = pathlib.Path(__file__).parents[2]


@pytest.mark.slow
def test_the_module_is_what_the_records_say():
  status, told = programs.run('advise_records', f'--root={_ROOT}', '--check')
  assert status == 0, f'run `python -m experiments.advise_records`: {told}'


def test_all_that_candidates_name_is_on_record():
  for candidate in candidates.CANDIDATES:
    assert candidate.estimate in {'', *recorded.STEPS_OF_SGD}
    for place in candidate.records.items():
      assert place in recorded.LOSSES
