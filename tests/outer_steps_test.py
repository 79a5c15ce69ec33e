"""docs/outer_steps.md runs as it stands, and shows what it prints."""

import pytest
from tests import pages


@pytest.mark.slow
def test_the_page_prints_what_it_says():
  page = pages.run('outer_steps.md')
  assert page.printed == page.said
