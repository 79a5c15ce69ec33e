"""Messages whose size depends on data: the rung, its bytes, and overflow."""

import gradsparse as gs
from gradsparse import codes
from gradsparse import compressors
from gradsparse import exchanges
from gradsparse import memories
from gradsparse.compressors import rule
from gradsparse.sockets import Compressor
from gradsparse.sockets import Ladder
from gradsparse.sockets import Leaves
from gradsparse.transform.compressed_mean import compressed_mean
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
import numpy as np
import pytest
from tests import marks
from tests import replay
from tests.oracles import ada_comp
from tests.oracles import checks
from tests.oracles import strom
from tests.oracles import variance
from tests.simulation import quickly

TAU = 0.5
N = 1000
FRACTIONS = (0.02, 0.08, 0.2, 0.5)
SLOTS = (20, 80, 200, 500)


def large(count, rng):
  """N numbers, `count` of them above the threshold, anywhere."""
  x = rng.uniform(-TAU, TAU, N)
  where = rng.permutation(N)[:count]
  x[where] = rng.choice([-1, 1], count) * rng.uniform(1.1, 9, count) * TAU
  return x.astype(np.float32)


def flat(trees):
  """float32[w, all elements]."""
  return np.stack([np.concatenate([x.ravel() for x in t]) for t in trees])


@pytest.fixture(scope='module')
def on_a_mesh():
  """A compiled Strom step on four devices: (tx, run, its audit)."""
  tx = gs.strom(TAU, ladder=FRACTIONS, axis_name=replay.AXIS)
  params = np.zeros(N, np.float32)
  specs = gs.workers.specs(tx, params, 4)
  mesh = jax.make_mesh(
    (4,),
    (replay.AXIS,),
    axis_types=(jax.sharding.AxisType.Auto,),
    devices=jax.devices()[:4],
  )

  def put(tree, specs):
    return jax.tree.map(
      lambda x, s: jax.device_put(x, NamedSharding(mesh, s)), tree, specs
    )

  state = put(gs.workers.init(tx, params, 4), specs)
  fn = gs.workers.parallel(
    lambda state, g: tx.step(g, state),
    runner='shard_map',
    num_workers=4,
    in_specs=(specs, replay.OWN),
    out_specs=(P(), specs, replay.OWN),
  )
  given = put(np.zeros((4, N), np.float32), replay.OWN)
  compiled = fn.lower(state, given).compile(replay.QUICKLY)

  def run(grads):
    return compiled(state, put(grads, replay.OWN))

  return tx, run, gs.audit(compiled)


@pytest.mark.parametrize(
  'need',
  marks.few([0, 1, 20, 21, 80, 81, 200, 201, 499, 500, 501, 1000], 501),
)
def test_the_rung_is_the_smallest_that_holds_the_neediest(on_a_mesh, need):
  tx, run, _ = on_a_mesh
  rungs = gs.plan(tx, np.zeros(N, np.float32), 4).rungs
  rng = np.random.default_rng(need)
  # One worker, not the first, needs more than all others.
  needs = [need // 3, need // 2, need, 0]
  grads = np.stack([large(count, rng) for count in needs])
  _, state, delivered = run(grads)
  fits = [n for n, slots in enumerate(SLOTS) if slots >= need]
  payload, _ = rungs[fits[0] if fits else -1]
  np.testing.assert_array_equal(state.stats.payload_bytes, payload)
  # What did not fit is counted, by the worker that had it, and still owed.
  overflow = [max(0, count - SLOTS[-1]) for count in needs]
  np.testing.assert_array_equal(state.stats.overflow_elements, overflow)
  assert gs.metrics(state)['overflow_elements'] == max(overflow)
  sent = np.count_nonzero(delivered, axis=1)
  np.testing.assert_array_equal(sent, np.minimum(needs, SLOTS[-1]))
  np.testing.assert_array_equal(state.stats.sent_elements, sent)
  owed = np.asarray(gs.pending(state)) + np.asarray(delivered)
  np.testing.assert_allclose(owed, grads, rtol=1e-6, atol=1e-6)


def test_audit_and_plan_list_the_bytes_of_every_rung(on_a_mesh):
  tx, _, audit = on_a_mesh
  plan = gs.plan(tx, np.zeros(N, np.float32), 4)
  (branches,) = audit.branches
  assert branches == tuple(sent for _, sent in plan.rungs)
  assert len(set(branches)) == len(SLOTS)
  assert list(branches) == sorted(branches)
  # To three others: a word of health, a sign and Elias-Fano's 2 + log2(N / k)
  # bits an element, in whole words; of the two largest, a bitmap's N / k.
  for slots, sent in zip(SLOTS, branches, strict=True):
    bits = slots * (1 + 2 + np.ceil(np.log2(N / slots)))
    if 8 * slots >= N:
      bits = slots + N
    assert 3 * (4 + bits / 8 - slots / 8) <= sent <= 3 * (4 + bits / 8 + 12)
  assert plan.sent_bytes == audit.sent_bytes
  # The agreement on the rung: one int32, by a ring all-reduce.
  assert audit.fixed_bytes == 2 * 3 / 4 * 4


def test_the_largest_message_is_planned_though_it_is_not_the_last():
  # Codes of 16 bits have no bitmap below the last rung, so that nearly all
  # with their coordinates are more than all without.
  tx = gs.variance_based(
    1.0, values='bfloat16', ladder=(0.99, 1.0), axis_name=replay.AXIS
  )
  plan = gs.plan(tx, np.zeros(N, np.float32), 2)
  (payload, sent), (last, less) = plan.rungs
  assert payload > last and sent > less
  assert plan.payload_bytes == payload
  assert plan.sent_bytes == sent + 4  # and the agreement on the rung


@pytest.mark.parametrize(
  'make, width',
  [
    (lambda **how: gs.strom(TAU, **how), 1),
    (lambda **how: gs.variance_based(1.0, **how), 4),
  ],
)
def test_from_an_eighth_on_a_message_has_a_bitmap(make, width):
  size, scales = 32_000, 4 * (width == 4)
  tx = make(ladder=(0.124, 0.125, 1.0), axis_name=replay.AXIS)
  plan = gs.plan(tx, np.zeros(size, np.float32), 2)
  _, (eighth, _), (all_, _) = plan.rungs
  assert eighth == 4 + scales + (size + size // 8 * width) // 8
  assert all_ == 4 + scales + (size + size * width) // 8


def test_one_rung_needs_no_agreement():
  tx = gs.strom(TAU, ladder=(0.02,), axis_name=replay.AXIS)
  plan = gs.plan(tx, np.zeros(N, np.float32), 4)
  assert not plan.rungs
  assert plan.sent_bytes == 3 * plan.payload_bytes


def test_the_rule_is_read_once_however_many_rungs_there_are():
  calls = []

  def positive(signal):
    calls.append(signal)
    return signal.value, signal.value > 0

  tx = compressed_mean(
    memories.residual(),
    compressors.by_rule(
      positive,
      codes.sparse(),
      name='positive',
      ladder=FRACTIONS,
    ),
    exchanges.all_gather(),
    axis_name=None,
  )
  params = [np.zeros(8, np.float32), np.zeros((3, 4), np.float32)]
  jax.make_jaxpr(tx.update)(params, tx.init(params))
  assert len(calls) == len(params)


# --- the default ladder -----------------------------------------------------

# Rules that more than a quarter of the elements satisfy.
PLENTY = {
  'strom': (lambda **k: gs.strom(0.05, **k), lambda: strom.Strom(0.05)),
  'variance': (
    lambda **k: gs.variance_based(0.6, **k),
    lambda: variance.VarianceBased(0.6),
  ),
  'variance_strom': (
    lambda **k: gs.variance_strom(0.6, threshold=0.05, **k),
    lambda: variance.VarianceStrom(0.6, threshold=0.05),
  ),
  'ada_comp': (
    lambda **k: gs.ada_comp(bin_size=2, **k),
    lambda: ada_comp.AdaComp(bin_size=2),
  ),
}


@pytest.mark.slow
@pytest.mark.parametrize('name', PLENTY)
def test_by_default_all_that_a_rule_wants_is_sent(name):
  """As the papers have it, to the last element, step after step."""
  scheme, oracle = PLENTY[name]
  tx, oracle = scheme(axis_name=replay.AXIS, min_size=0), oracle()
  for step in replay.replay(tx, replay.drawn_steps(3, count=2)):
    moments = [step.moments] if name.startswith('variance') else []
    mean = oracle.step(step.grads, *moments)
    assert np.count_nonzero(flat(oracle.delivered)) > 0.3 * 3 * 252
    np.testing.assert_array_equal(
      flat(step.delivered) != 0, flat(oracle.delivered) != 0
    )
    for own, expected in (
      ([step.mean], [mean]),
      (step.delivered, oracle.delivered),
      (step.pending, oracle.pending),
    ):
      checks.close(flat(own), flat(expected))
    assert step.metrics['overflow_elements'] == 0


@pytest.mark.slow
def test_eight_workers_with_everything_above_the_threshold_send_it():
  """1,024 of 4,096 went, and the rest waited."""
  tx = gs.strom(0.1, axis_name=replay.AXIS)
  drawn = replay.drawn_steps(8, count=1, shapes=((4096,),))
  (step,) = replay.replay(tx, drawn)
  wanted = np.abs(flat(step.grads)) > 0.1
  assert np.all(wanted.sum(axis=1) > 3000)
  np.testing.assert_array_equal(flat(step.delivered) != 0, wanted)
  assert step.metrics['overflow_elements'] == 0


BIG = jax.ShapeDtypeStruct((2**20,), np.float32)


@pytest.mark.parametrize(
  'make, ratio',
  [
    # The largest ratios of the paper, tables 1 and 2.
    (lambda **k: gs.variance_based(2.0, **k), 5_174),
    (lambda **k: gs.variance_strom(2.0, threshold=0.1, **k), 28_954),
  ],
)
def test_the_default_ladder_begins_below_the_published_ratios(make, ratio):
  smallest, *_ = gs.plan(make(axis_name=replay.AXIS), BIG, 4).rungs
  assert BIG.size * 4 / smallest[0] > ratio
  assert rule.LADDER[0] <= 1 / 32768


@pytest.mark.parametrize('workers', marks.few([2, 4, 16, 32], 32))
def test_the_top_rung_goes_the_cheaper_way(workers):
  """It holds all, as a bitmap and a code of every element: 1 bit, 4, or 32."""
  for bits, tx in (
    (2, gs.strom(0.1, axis_name=replay.AXIS)),
    (5, gs.variance_based(2.0, axis_name=replay.AXIS)),
    (33, gs.variance_based(2.0, values='float32', axis_name=replay.AXIS)),
  ):
    payload, sent = gs.plan(tx, BIG, workers).rungs[-1]
    gathered, reduced = BIG.size * bits // 8, BIG.size * 4
    rings = 2 * (workers - 1) / workers * reduced
    cheaper = gathered if (workers - 1) * gathered < rings else reduced
    # A long message fills its last row.
    assert payload == pytest.approx(cheaper, rel=1e-4, abs=4 * 128)
    assert sent == pytest.approx(
      min((workers - 1) * gathered, rings), rel=1e-4, abs=4 * 128 * workers
    )


# --- overflow ---------------------------------------------------------------

LEAVES = ((20,), (4, 5), (20,))
STARVED = {
  'strom': lambda **k: gs.strom(TAU, **k),
  'variance': lambda **k: gs.variance_based(1.0, decay=1.0, **k),
  'variance_strom': lambda **k: gs.variance_strom(1.0, threshold=TAU, **k),
  'ada_comp': lambda **k: gs.ada_comp(bin_size=2, **k),
}


@pytest.mark.parametrize('name', marks.few(STARVED, 'strom'))
def test_overflow_is_counted_and_stays_in_the_memory(name):
  """Six slots for dozens of elements that want to go: nothing is lost."""
  tx = STARVED[name](ladder=(0.1,), axis_name=replay.AXIS)
  drawn = replay.drawn_steps(3, count=3, shapes=LEAVES)
  tiny = [
    (grads, [[0.01 * g**2 for g in tree] for tree in grads])
    for grads, _ in drawn
  ]
  total = np.zeros((3, 60))
  for t, step in enumerate(replay.replay(tx, tiny)):
    total += flat(step.grads) - flat(step.delivered)
    np.testing.assert_allclose(flat(step.pending), total, atol=1e-5)
    sent = np.count_nonzero(flat(step.delivered), axis=1)
    assert np.all((1 <= sent) & (sent <= 6))
    assert step.metrics['overflow_elements'] > 0
    if name == 'strom' and t == 0:
      wanted = np.sum(np.abs(flat(step.grads)) > TAU, axis=1)
      assert step.metrics['overflow_elements'] == max(wanted) - 6


@pytest.mark.slow
def test_no_leaf_starves_in_a_ladder_that_is_too_small():
  """All 60 want to go and 6 fit: after 10 steps each has gone once."""
  tx = gs.strom(TAU, ladder=(0.1,), axis_name=replay.AXIS)
  one = [[np.ones(s, np.float32) for s in LEAVES]] * 2
  steps = list(replay.replay(tx, [(one, one)] * 20))
  count = np.zeros(60)
  for t, step in enumerate(steps):
    leaves = [np.ravel(x) for x in step.delivered[1]]
    count += np.concatenate(leaves) != 0
    assert step.metrics['overflow_elements'] == 54
    if t == 9:
      np.testing.assert_array_equal(count, 1)
  np.testing.assert_array_equal(count, 2)
  assert steps[0].metrics['sent_elements'] == 6


@pytest.mark.slow
def test_where_elements_come_and_go_every_leaf_is_served():
  """A circle that began at the same place each step would serve the first."""
  tx = gs.strom(TAU, ladder=(0.1,), axis_name=replay.AXIS)
  drawn = replay.drawn_steps(2, count=30, shapes=LEAVES)
  served = np.zeros((2, 3))
  for step in replay.replay(tx, drawn):
    for w, tree in enumerate(step.delivered):
      served[w] += [np.count_nonzero(x) for x in tree]
  # 180 places; a fair share is 60 each.
  assert np.all(served > 30)


@pytest.mark.slow
@pytest.mark.parametrize('values, slots', [('exponent4', 20), ('float32', 500)])
def test_what_the_value_code_cannot_say_takes_no_slot(values, slots):
  """400 elements pass the criterion, all but 4 far below the largest."""
  tx = gs.variance_based(
    1.0, values=values, ladder=FRACTIONS, min_size=0, axis_name=None
  )
  grads = np.full(N, 1e-6, np.float32)
  grads[:4] = 1.0
  moment = np.where(np.arange(N) < 400, grads**2 / 2, grads**2 * 2)
  state = tx.init(grads)
  step = quickly(
    lambda g, state, m: tx.step(g, state, second_moment=m),
    grads,
    state,
    moment.astype(np.float32),
  )
  _, state, delivered = step(grads, state, moment.astype(np.float32))
  assert int(np.count_nonzero(delivered)) == (4 if slots == 20 else 400)
  sizes = dict(zip(SLOTS, tx_payloads(tx), strict=True))
  assert int(gs.metrics(state)['payload_bytes']) == sizes[slots]
  # What was too small is still owed.
  np.testing.assert_allclose(gs.pending(state)[10], grads[10] - delivered[10])


def tx_payloads(tx):
  return [
    payload for payload, _ in gs.plan(tx, np.zeros(N, np.float32), 1).rungs
  ]


# --- a ladder of one's own --------------------------------------------------


@pytest.mark.slow
def test_a_ladder_can_be_of_whole_leaves():
  """Every rung sends all leaves, cleared below its own bar."""

  def select(signals, ctx):
    return Leaves(
      [jnp.where(abs(s.value) > ctx.rung, s.value, 0.0) for s in signals]
    )

  compressor = Compressor(
    'bars',
    select,
    codes.plain.of_leaves(),
    ladder=Ladder(
      rungs=lambda shapes: (1.0, 0.5), choose=lambda ctx: ctx.step % 2
    ),
  )
  tx = compressed_mean(
    memories.residual(),
    compressor,
    exchanges.all_gather(),
    axis_name=replay.AXIS,
  )
  for t, step in enumerate(replay.replay(tx, replay.drawn_steps(2, count=2))):
    sent = flat(step.delivered)
    assert np.all(np.abs(sent[sent != 0]) > (1.0, 0.5)[t % 2])
    assert np.any(sent)
    np.testing.assert_allclose(
      np.concatenate([x.ravel() for x in step.mean]), sent.mean(0), rtol=1e-6
    )


@pytest.mark.slow
def test_what_an_exchange_does_not_deliver_stays_in_the_memory():
  """It delivers nothing of what was marked, whatever the size was."""
  whole = exchanges.all_gather()

  def run(message, comm):
    back = whole.run(message, comm)
    return back._replace(
      total=[jnp.zeros_like(x) for x in back.total],
      delivered=back.delivered.only_if(jnp.bool_(False)),
    )

  tx = compressed_mean(
    memories.residual(),
    compressors.by_rule(rule.strom(TAU), codes.signs_of(TAU), name='strom'),
    whole._replace(name='nothing', run=run),
    axis_name=replay.AXIS,
    min_size=0,
  )
  rng = np.random.default_rng(0)
  grads = jnp.stack([large(count, rng) for count in (3, 900)])
  state = jax.vmap(lambda _: tx.init(jnp.zeros(N)))(jnp.arange(2))
  updates, state = jax.jit(jax.vmap(tx.update, axis_name=replay.AXIS))(
    grads, state
  )
  assert not np.any(updates)
  np.testing.assert_allclose(jax.vmap(gs.pending)(state), grads, rtol=1e-6)
