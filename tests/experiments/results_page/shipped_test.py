"""What `gs.advise` quotes is what the records say."""

import pathlib

from experiments.papers import catalogue
from experiments.results_page import shipped
from gradsparse.advise import candidates
from gradsparse.advise import recorded

_ROOT = pathlib.Path(__file__).parents[3]


def test_the_module_is_what_the_records_say():
  tables = {name: catalogue.load(name) for name in catalogue.NAMES}
  assert (
    shipped.module(tables, _ROOT) == (_ROOT / shipped.MODULE).read_text()
  ), 'run `python -m experiments.advise_records`'


def test_all_that_candidates_name_is_on_record():
  for candidate in candidates.CANDIDATES:
    assert candidate.estimate in {'', *recorded.STEPS_OF_SGD}
    for place in candidate.records.items():
      assert place in recorded.LOSSES
