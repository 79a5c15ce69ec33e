"""The sizes that papers print, by counting."""

import pytest
from tests.oracles import wire_sizes


@pytest.mark.parametrize('model', wire_sizes.MODELS)
def test_tables_3_and_4_of_dgc(model):
  shapes = wire_sizes.MODELS[model]()
  total, one_dimensional, printed = wire_sizes.PUBLISHED[model]
  assert wire_sizes.parameters(shapes) == total
  assert wire_sizes.one_dimensional(shapes) == one_dimensional
  exact = {
    'alexnet': (0.389, 597.7),
    'resnet50': (0.352, 276.7),
    'ptb_lstm': (0.4215, 461.8),
    'deepspeech': (0.737, 608.1),
  }
  mib, ratio = exact[model]
  assert abs(wire_sizes.dgc_bytes(shapes) / wire_sizes.MIB - mib) < 6e-4
  assert abs(wire_sizes.dgc_ratio(shapes) - ratio) < 0.05
  assert abs(wire_sizes.dgc_ratio(shapes, whole_k=True) - printed) < 1


def test_other_published_sizes():
  mib = wire_sizes.MIB
  dense = {
    name: round(wire_sizes.dense_bytes(f()) / mib, 2)
    for name, f in wire_sizes.MODELS.items()
  }
  assert dense == {
    'alexnet': 232.56,
    'resnet50': 97.49,
    'ptb_lstm': 194.68,
    'deepspeech': 448.08,
  }  # printed 488.08
  row = wire_sizes.terngrad_bytes(wire_sizes.alexnet(), dense={'fc8.kernel'})
  assert round(row / mib, 2) == 29.18
  single = wire_sizes.ptb_lstm(bias_sets=1)
  assert round(wire_sizes.dgc_ratio(single)) == 518
  untied = wire_sizes.ptb_lstm(tied=False)
  assert wire_sizes.parameters(untied) == 66_034_000
  assert wire_sizes.parameters(wire_sizes.cifar_resnet(20)) == 269_722
  assert wire_sizes.parameters(wire_sizes.cifar_resnet(110)) == 1_727_962
