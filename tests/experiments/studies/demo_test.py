"""The demo, in short."""

from configs import digits
from experiments.studies import demo
import pytest


@pytest.mark.slow
def test_demo_in_short(tmp_path, capsys):
  former = tmp_path / 'dense'
  former.mkdir()
  (former / 'config.json').write_text('{}')
  (former / 'metrics.jsonl').write_text('{"step": 99}\n')
  summaries = demo.run(tmp_path, list(digits.SCHEMES), steps=1)
  assert [summary['scheme'] for summary in summaries] == list(digits.SCHEMES)
  for summary in summaries:
    assert summary['parameters'] == 283_786
    assert summary['comm']['dense_bytes_per_step'] == 4 * 283_786
  # One step of DGC is a step of its warm-up; its plan is the last stage's.
  ratios = {s['scheme']: s['comm']['ratio'] for s in summaries}
  assert ratios['dgc'] > 500 and ratios['qsgd'] > 6
  assert ratios['gradient_dropping'] == ratios['gtopk']
  printed = capsys.readouterr().out
  for text in ('step 1/1', 'compression', '7.9x', 'report.html'):
    assert text in printed
  page = (tmp_path / 'report.html').read_text()
  assert all(scheme in page for scheme in digits.SCHEMES)
  assert (tmp_path / 'qsgd' / 'summary.json').exists()
  assert '99' not in (former / 'metrics.jsonl').read_text().split(',')[0]
