"""What `gs.advise` says, and in which form."""

import dataclasses
import html
import json
import pathlib
import re
import time

import gradsparse as gs
from gradsparse.advise import __main__ as program
from gradsparse.advise import advising
from gradsparse.advise import calibration
from gradsparse.advise import candidates
from gradsparse.advise import param_shapes
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
import optax
import pytest
from tests.advise.questions import ASKED
from tests.advise.questions import FEW
from tests.advise.questions import TREE

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(autouse=True, scope='module')
def _planned_once():
  """Questions here differ in links and records, few in what is planned."""
  plan, known = advising._planned_as, {}

  def planned_as(asked, candidate, large):
    of_asked = asked.adam, asked.workers, asked.inner, asked.backward_s
    key = candidate.label, large, *of_asked, repr(asked.shapes)
    if key not in known:
      known[key] = plan(asked, candidate, large)
    return known[key]._replace(candidate=candidate)

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(advising, '_planned_as', planned_as)
    yield


@pytest.fixture(scope='module')
def slow_link():
  return gs.advise(TREE, **ASKED, task='digits')


def test_on_a_slow_link_it_says_compress(slow_link):
  assert slow_link.decision == 'compress'
  assert slow_link.verdict.startswith(f'compress with {slow_link.choice}. ')
  times = [row.step_s for row in slow_link.rows]
  assert times == sorted(times)
  assert slow_link.row(slow_link.choice).loss.as_good


def test_what_ended_worse_on_another_task_is_to_be_measured():
  asked = ASKED | {'schemes': ['dgc 0.001']}
  advice = gs.advise(TREE, **asked, task='digits')
  assert advice.rows[0].loss.as_good and advice.rows[0].worse
  assert (advice.decision, advice.choice) == ('measure', 'dgc 0.001')
  assert 'resnet20 it ended -1.74 ± 0.32 points of accuracy' in advice.verdict
  # 1-bit SGD's record is as good as DGC's, and worse on no task.
  both = gs.advise(TREE, **ASKED, task='digits')
  assert (both.decision, both.choice) == ('compress', 'one_bit_sgd, scatter')


def test_of_other_tasks_a_worse_end_is_shown_first_then_several_seeds():
  shown = {
    label: advising._recorded(candidates.BY_LABEL[label], 'resnet20')[0]
    for label in ('sign_majority', 'power_sgd rank 2', 'dgc 0.001')
  }
  assert [(loss.task, loss.seeds) for loss in shown.values()] == [
    ('cifar10', 1),
    ('digits', 3),
    ('resnet20', 3),
  ]
  assert shown['sign_majority'].as_good is False


def test_its_bytes_are_those_of_the_plan(slow_link):
  params = {'kernel': jnp.zeros((512, 512)), 'bias': jnp.zeros(512)}
  for label, tx in (
    ('dense bfloat16', gs.dense(wire_dtype='bfloat16', axis_name='w')),
    ('dgc 0.001', gs.dgc(0.001, axis_name='w')),
    (
      'one_bit_sgd, scatter',
      gs.one_bit_sgd(exchange='reduce_scatter', axis_name='w'),
    ),
  ):
    row = slow_link.row(label)
    assert row.sent_bytes == gs.plan(tx, params, 4).sent_bytes
    state = jax.tree.leaves(jax.eval_shape(tx.init, params))
    held = sum(leaf.size * leaf.dtype.itemsize for leaf in state)
    assert row.state_bytes == held


@pytest.mark.slow
def test_its_code_makes_the_scheme_that_was_planned(slow_link):
  names = {}
  dgc = gs.advise(TREE, **ASKED | {'schemes': FEW[:1]}, task='cifar10')
  exec(dgc.code, names)
  assert 'has the momentum (0.9)' in dgc.code
  plan = gs.plan(names['tx'], {'w': jnp.zeros((512, 512))}, 4)
  assert plan.stages and isinstance(names['tx'], optax.GradientTransformation)
  asked = ASKED | {'schemes': FEW[:1]}
  with_adam = gs.advise(TREE, **asked, optimizer='adamw', task='cifar10')
  exec(with_adam.code, names)
  assert 'momentum=0.0' in with_adam.code and 'adamw' in with_adam.code


def test_where_the_backward_pass_hides_dense_it_says_do_not_compress():
  advice = gs.advise(TREE, **ASKED | {'bandwidth': '400gbit'})
  assert advice.decision == 'do not compress'
  assert advice.choice == advice.baseline == 'dense bfloat16'
  assert 'hides all of it' in advice.verdict
  names = {}
  exec(advice.code, names)  # fits the step of README.md
  tx, params = names['tx'], {'w': jnp.zeros(2)}
  state = gs.workers.init(tx, params, num_workers=2)
  specs = gs.workers.specs(tx, params, num_workers=2)
  train = gs.workers.parallel(
    lambda state, grads: tx.update(grads, state, params),
    runner='simulate',
    num_workers=2,
    in_specs=(specs, P('workers')),
    out_specs=(P(), specs),
  )
  updates, _ = train(state, {'w': jnp.array([[1.0, 3.0], [3.0, 5.0]])})
  assert updates['w'] == pytest.approx([-0.2, -0.4])
  assert advice.code.count('#') == 2  # of the rate, and one line


def test_its_code_fits_the_optimizer(slow_link):
  assert 'momentum=0.9' in slow_link.code
  assert 'learning_rate = 0.1 ' in slow_link.code
  for bandwidth in ('10mbit', '400gbit'):
    asked = ASKED | {'bandwidth': bandwidth, 'task': 'digits'}
    code = gs.advise(TREE, **asked, optimizer='adamw').code
    assert 'learning_rate = 0.001 ' in code and '(0.9)' not in code
  assert all(len(line) <= 80 for line in slow_link.code.splitlines())


def test_one_worker_sends_nothing():
  advice = gs.advise(TREE, **ASKED | {'workers': 1})
  assert advice.decision == 'do not compress'
  assert all(row.sent_bytes == 0 for row in advice.rows)


def test_the_verdict_has_the_range_of_the_speedup(slow_link):
  row, base = slow_link.row(slow_link.choice), slow_link.row('dense bfloat16')
  least = base.step_least_s / row.step_most_s
  most = base.step_most_s / row.step_least_s
  assert f'expected {least:.1f} to {most:.1f})' in slow_link.verdict


def test_the_verdict_says_how_little_a_record_proves(slow_link):
  assert 'supported, but its 95 % interval reaches -0.43' in (slow_link.verdict)
  assert 'small models with 4 workers, in short runs' in slow_link.verdict


def test_a_scheme_as_good_elsewhere_comes_before_one_without_a_record():
  few = ['dgc 0.001', 'power_sgd rank 2', 'one_bit_sgd, scatter']
  few[1] = dataclasses.replace(candidates.BY_LABEL[few[1]], records={})
  advice = gs.advise(TREE, **ASKED | {'schemes': few})
  unknown, known = advice.row(few[1].label), advice.row(few[-1])
  assert unknown.step_s < known.step_s and unknown.loss is None
  assert advice.row('dgc 0.001').loss.as_good is False  # of ResNet-20
  assert (advice.decision, advice.choice) == ('measure', few[-1])
  assert 'In our record of digits' in advice.verdict


def test_what_has_no_record_on_the_task_is_to_be_measured():
  asked = ASKED | {'schemes': FEW[1:]}
  advice = gs.advise(TREE, **asked, optimizer='adamw')
  assert advice.decision == 'measure'
  assert advice.verdict.startswith('measure first.')
  assert 'gpt has no such training' in advice.verdict
  assert 'overlap' not in advice.verdict
  memory = f'{FEW[1]} keeps a memory: no paper defines one before Adam.'
  assert advice.verdict.index(memory) < advice.verdict.index('Our record')
  with_sgd = gs.advise(TREE, **asked, task='digits')
  assert (with_sgd.decision, 'memory' in with_sgd.verdict) == (
    'compress',
    False,
  )


def test_a_hidden_exchange_comes_with_its_price_if_nothing_hides_it():
  asked = ASKED | {'bandwidth': '220mbit', 'schemes': ['dgc 0.001']}
  advice = gs.advise(TREE, **asked, optimizer='adam', task='digits')
  assert advice.decision == 'do not compress'
  dense = 100 + 1e3 * advice.rows[0].exchange_s
  assert 'If nothing hides it' in advice.verdict
  assert f'a step takes {dense:.0f} ms, and ' in advice.verdict
  fast = gs.advise(TREE, **asked | {'bandwidth': '400gbit'})
  assert 'If nothing' not in fast.verdict


@pytest.mark.parametrize('step_s, asks', [(1e-6, '0.001 ms'), (0.1, '')])
def test_a_step_in_a_wrong_unit_is_asked_about(step_s, asks):
  verdict = gs.advise(TREE, **ASKED | {'step_s': step_s}).verdict
  assert (f'A step of {asks}' in verdict) == bool(asks)


def test_overlapping_ranges_are_no_verdict():
  asked = ASKED | {'bandwidth': '35mbit', 'schemes': ['dgc 0.001']}
  asked['task'] = 'cifar10'
  advice = gs.advise(TREE, **asked, code_s={'dgc 0.001': 0.06})
  assert advice.decision == 'measure'
  assert advice.verdict.startswith('measure first.')


def test_dense_that_may_take_longer_than_a_scheme_is_to_be_timed():
  asked = ASKED | {'bandwidth': '100mbit', 'schemes': ['dgc 0.001']}
  advice = gs.advise(TREE, **asked, task='digits')
  assert (advice.decision, advice.choice) == ('measure', 'dense bfloat16')
  assert advice.verdict.startswith('measure first: time your dense step. ')
  dgc, dense = (advice.row(name) for name in ('dgc 0.001', advice.baseline))
  assert dense.step_most_s > 1.05 * dgc.step_most_s and dgc.speedup < 1.05


def test_with_schemes_given_none_is_none_of_those():
  asked = ASKED | {'schemes': ['dense float32']}
  verdict = gs.advise(TREE, **asked).verdict
  assert 'None of those given makes the step 1.05 times as fast' in verdict


def test_what_is_on_record_as_worse_is_not_advised():
  asked = ASKED | {'schemes': ['gtopk 0.001']}
  advice = gs.advise(TREE, **asked, task='cifar10')
  assert advice.rows[0].scheme == 'gtopk 0.001'
  assert advice.decision == 'do not compress'
  assert 'ended as well as dense' in advice.verdict


def test_a_scheme_that_exchanges_every_so_many_steps_is_a_row_like_others():
  outer = candidates.Candidate('outer, dense', 'dense', sync_every=30)
  advice = gs.advise(TREE, **ASKED | {'schemes': [*FEW, outer]})
  dense = gs.advise(TREE, **ASKED | {'schemes': ['dense float32']})
  row = advice.row('outer, dense')
  assert row.sent_bytes == dense.row('dense float32').sent_bytes
  assert row.bytes_a_step == row.sent_bytes / 30
  assert row.step_s == pytest.approx(0.1 + row.exchange_s / 30)
  # A step's bytes over the bandwidth are a step's exchange.
  cells = r'outer, dense +30 +52.5 kB +0 +42 '
  assert re.search(cells, advice.table())


def test_a_far_faster_outer_step_is_named_with_its_record():
  qsgd = 'qsgd 4 bits'
  asked = ASKED | {'bandwidth': '1mbit', 'schemes': [qsgd, 'diloco']}
  asked['task'] = 'digits'
  advice = gs.advise(TREE, **asked, sync_every=200)
  assert (advice.decision, advice.choice) == ('measure', qsgd)
  row = advice.row('diloco')
  assert row.sync_every == 200 and 2 * row.step_s < 0.5
  ended = 'in our record of gpt it ended +8.91 ± 3.21 % of bits a character'
  says = f'once in 200 steps, takes {1e3 * row.step_s:.0f} ms, but {ended} '
  assert says in advice.verdict
  assert 'which exchanges' not in gs.advise(TREE, **asked, sync_every=1).verdict


def test_one_bit_adam_is_a_row_where_the_optimizer_is_adam():
  asked = ASKED | {'schemes': ['one_bit_adam']}
  advice = gs.advise(TREE, **asked, optimizer='adamw')
  assert advice.row('one_bit_adam').loss.difference == '+2.53 ± 10.25'
  assert advice.row('one_bit_adam').sent_bytes < 60_000
  assert advice.decision == 'measure'  # its seeds ended too far apart
  known = candidates.BY_LABEL['one_bit_adam']
  asked['schemes'] = [dataclasses.replace(known, records={})]
  code = gs.advise(TREE, **asked, optimizer='adamw').code
  names = {}
  exec(code, names)
  assert 'gs.one_bit_adam(learning_rate, ' in code and 'chain' not in code
  sharded = gs.advise(TREE, **asked, optimizer='adamw', inner=2)
  assert 'whole optimizer' in sharded.left_out['one_bit_adam']


@pytest.mark.parametrize('label', ['diloco', 'sparse_loco'])
def test_the_presets_of_outer_steps_are_rows(label):
  known = candidates.BY_LABEL[label]
  asked = ASKED | {'bandwidth': '1mbit'}
  asked['schemes'] = [dataclasses.replace(known, records={})]
  advice = gs.advise(TREE, **asked)
  assert (advice.decision, advice.choice) == ('measure', label)
  names = {}
  exec(advice.code, names)
  params = jax.tree.map(jnp.zeros, TREE, is_leaf=lambda x: isinstance(x, list))
  plan = gs.plan(names['tx'], params, ASKED['workers'])
  row = advice.row(label)
  assert (plan.every, plan.sent_bytes) == (30, row.sent_bytes)
  state = names['tx'].init(params)
  assert row.state_bytes == sum(x.nbytes for x in jax.tree.leaves(state))
  assert f'{label}: an exchange takes' in ' '.join(advice.assumptions)


@pytest.mark.slow
def test_devices_of_a_worker_share_its_link_and_its_arithmetic():
  asked = ASKED | {'schemes': ['dense float32', 'dgc 0.001', 'gtopk 0.001']}
  asked['task'] = 'cifar10'
  whole, parts = gs.advise(TREE, **asked), gs.advise(TREE, **asked, inner=4)
  dense = 'dense float32'
  assert parts.row(dense).sent_bytes == pytest.approx(
    whole.row(dense).sent_bytes, rel=0.01
  )
  assert parts.row('dgc 0.001').code_s < whole.row('dgc 0.001').code_s
  assert 'gs.sharded(gs.' in parts.code
  assert '(docs/sharded_models.md)' in parts.code
  assert 'selects from all leaves' in parts.left_out['gtopk 0.001']


def test_json_and_table_have_every_row(slow_link):
  read = json.loads(slow_link.to_json())
  assert [row['scheme'] for row in read['rows']] == [
    row.scheme for row in slow_link.rows
  ]
  assert read['decision'] == 'compress' and read['code'] == slow_link.code
  assert read['inputs']['bits_per_second'] == 1e7
  assert read['inputs']['params'] == 512 * 512 + 512
  (loss,) = (row['loss'] for row in read['rows'] if 'bit' in row['scheme'])
  assert (loss['mean'], loss['half']) == (0.37, 0.8)
  assert read['rows'][-1]['scheme'] == 'dense bfloat16'
  table = slow_link.table().splitlines()
  assert len(table) == 1 + len(slow_link.rows) + 1
  assert str(slow_link).startswith('Verdict: compress')


@pytest.mark.slow
def test_arithmetic_is_measured_on_this_machine(capsys):
  advice = gs.advise(TREE, **ASKED, calibrate=True)
  assert {row.code_source for row in advice.rows} == {'', 'measured'}
  assert "* measured on this machine's device" in advice.table()
  assert capsys.readouterr().err.splitlines() == [
    f'measuring {label}' for label in FEW
  ]
  large = calibration.portion([jax.ShapeDtypeStruct((10**5, 10**3), 'f4')])
  assert param_shapes.elements(large) == calibration.MOST_ELEMENTS


def test_the_page_shows_what_the_command_prints(capsys):
  page = (ROOT / 'docs/choose.md').read_text()
  command = re.search(r'```sh\n(python -m .*?)```', page, re.DOTALL)[1]
  flags = re.findall(r'--\S+', command)
  assert program.main(flags) == 0
  assert f'```text\n{capsys.readouterr().out}```' in page


def test_the_page_times_a_step(capsys):
  page = (ROOT / 'docs/choose.md').read_text()
  recipe = re.search(r'```python\n(.*?)```', page, re.DOTALL)[1]
  names = dict(jax=jax, np=np, time=time, params=1.0, state=2.0, batch=None)
  exec(recipe, names | {'step': lambda params, state, batch: (params, state)})
  assert re.fullmatch(r'--step_ms \S+\n', capsys.readouterr().out)
  assert recipe.count('\n') <= 8


def test_help_lists_the_schemes(capsys):
  with pytest.raises(SystemExit):
    program.main(['--help'])
  said = ' '.join(capsys.readouterr().out.split())
  assert '; '.join(candidates.BY_LABEL) in said


@pytest.mark.slow
def test_the_situations_of_the_page_get_its_verdicts(tmp_path, capsys):
  page = (ROOT / 'docs/choose.md').read_text()
  rows = re.findall(r'^\| .+ \| `(--.+)` \| (\w.+) \|$', page, re.MULTILINE)
  assert len(rows) == 3
  for flags, verdict in rows:
    assert program.main(flags.split()) == 0
    said = ' '.join(capsys.readouterr().out.split('\n\n')[0].split())
    assert said.startswith('Verdict: ' + verdict.partition(',')[0])
    assert ('If nothing hides it' in said) == (', if the' in verdict)


def test_a_notebook_shows_the_verdict_the_rows_and_the_code():
  advice = gs.advise(TREE, **ASKED)
  shown = advice._repr_html_()
  assert shown.count('<tr>') == 1 + len(advice.rows)
  for text in (advice.verdict, advice.code, advice.rows[0].scheme):
    assert html.escape(text) in shown
  assert shown.index('Verdict') < shown.index('<table>')
  left_out = gs.advise(TREE, **ASKED | {'schemes': ['gtopk 0.001']}, inner=4)
  assert 'left out: gtopk' in left_out._repr_html_()


def test_a_verdict_is_that_of_the_results():
  for task, scheme, told in (
    ('ptb', 'terngrad', 'ptb terngrad: +217.85 ± 6.66, contradicted'),
    ('speech', 'terngrad', 'terngrad: +1.83, open, one seed'),
  ):
    asked = ASKED | {'schemes': [scheme]}
    assert told in gs.advise(TREE, **asked, task=task).table()
