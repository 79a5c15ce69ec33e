"""docs/elastic.md runs as it stands, and shows what it prints."""

import numpy as np
import pytest
from tests import pages

pytestmark = pytest.mark.slow


@pytest.fixture(scope='module')
def page():
  return pages.run('elastic.md')


def test_the_page_prints_what_it_says(page):
  assert page.printed == page.said


def test_the_run_goes_on(page):
  """The loss of the last step is that of a model which learns."""
  x, y = page.names['batch'](2, 9)
  assert page.names['loss'] < np.mean(y**2)
  assert np.any(page.names['before'])
