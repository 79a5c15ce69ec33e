r"""Every field of an experiment, with its default: digits without compression.

Command:
  python -m experiments.main --config=configs/default.py --workdir=runs/default

Any field on the command line, and any argument of the scheme's factory
(`gs.dgc`, `gs.qsgd`, ...) as `compression.ARG`:
  python -m experiments.main --config=configs/default.py --workdir=runs/dgc \
    --config.compression.name=dgc --config.compression.density=0.001 \
    --config.compression.warmup_steps=88
"""

from collections.abc import Mapping
from typing import Any

from experiments.program import errors
import ml_collections


def get_config() -> ml_collections.ConfigDict:
  """Returns the default configuration."""
  config = ml_collections.ConfigDict()

  config.train = train = ml_collections.ConfigDict()
  train.steps = 660  # batches that a worker takes
  train.batch_size = 16  # examples of one (inner) worker in a step
  train.bptt_length = 35  # of text: symbols of an example in a step
  train.learning_rate = 0.05  # at the first step
  train.seed = 0  # of parameters, data order and augmentation
  train.log_every = 10  # steps
  train.eval_every = 110  # steps; 0: only after the last
  train.checkpoint_every = 110  # steps; 0: never
  # A step is rejected if some worker's gradient or update is not finite; it
  # then changes no parameter. After so many rejected steps in a row the run
  # stops.
  train.max_rejected_steps = 20
  # The run ends after so many tests in a row (one every eval_every steps) that
  # find no lower loss than all before, as if that step were its last. 0: never.
  # Hold out a part of the training set for the tests.
  train.early_stop_patience = 0
  # Report and save (params.npz) the model with the lowest test loss, not the
  # last one. Hold out a part of the training set, too.
  train.keep_best = False
  # Decay of an exponential moving average of the parameters, in a step. The
  # average is tested and written to params.npz. 0: off.
  train.ema_decay = 0.0
  # Steps between two profiled steps. Their times of gradients, compression,
  # exchange and update are in metrics.jsonl and the report. 0: never.
  train.time_breakdown_every = 0

  config.data = data = ml_collections.ConfigDict()
  # Images: digits, cifar10, mnist, fashion_mnist, imagenet. Text, to predict
  # the next word or character: ptb, ptb_characters. Speech, to transcribe: an4,
  # librispeech, fsdd (strings of digits). Sentences, to translate: multi30k,
  # wmt.
  data.name = 'digits'
  # Root of all data sets or the set's own folder. Empty: what the environment
  # variable GRADSPARSE_DATA says.
  data.dir = ''
  # 'test': the set's own test split. 'validation': a fifth of the training
  # set, or the set's own file for it, to choose settings on. CIFAR-10: also a
  # training file's stem.
  data.test_split = 'test'
  # Another split, likewise; empty: none. The reported model is tested there
  # too, after all tests of data.test_split. If those tests decide on the
  # learning rate, the end of the run or the model, set data.test_split to the
  # validation set, and this to the test set.
  data.final_split = ''
  # Random flips; of small images random shifts, of ImageNet's random crops too.
  data.augment = False
  data.transcripts = 'letters'  # or words, of fsdd
  # To how many lengths utterances and sentences are padded, at most. A run
  # compiles a program for each length.
  data.buckets = 8
  # Of sentences: source and target language, as in the names of the files; size
  # of the vocabulary of pieces of words, for both languages together; and most
  # pieces on one side of a worker's batch, padding counted (0: train.batch_size
  # sentences).
  data.source = 'en'
  data.target = 'de'
  data.vocabulary = 4000
  data.tokens = 0
  # Pairs with a side of more pieces, begin and end counted, are not trained on.
  data.max_length = 100
  # Folder that keeps the sentences as numbers: a run begins sooner, and its
  # processes share the memory. Empty: each process converts them anew.
  data.cache = ''
  data.image_size = 224  # pixels of a side that a model sees of ImageNet

  config.model = model = ml_collections.ConfigDict()
  # Any of experiments/models: for small images also logistic, mlp, perceptron,
  # resnet8, resnet20, resnet110, vgg16, vgg_like; for ImageNet alexnet,
  # alexnet_ungrouped, bn_inception, resnet50, resnet152, vgg19. For text
  # lstm_200, lstm_1500, lstm_1500_untied, gpt_200k, gpt_10m; for speech
  # deepspeech_small, deepspeech_gru, deepspeech_lstm, projected_lstm; for
  # translation attention_small, attention_ro_en, attention_ro_en_lstm,
  # attention_en_de.
  model.name = 'convnet'

  config.test = test = ml_collections.ConfigDict()
  # Width of the beam search for translations; 1: greedy decoding.
  test.beam = 1

  config.optimizer = optimizer = ml_collections.ConfigDict()
  # Or adam; adamw (decays matrices alone, b2 0.95); muon (with adamw for the
  # embedding and what is no matrix).
  optimizer.name = 'sgd'
  # dgc takes this as its own momentum, and plain SGD follows; with all other
  # schemes momentum comes after the exchange.
  optimizer.momentum = 0.9
  optimizer.nesterov = False
  optimizer.weight_decay = 0.0
  # False: weight decay on the local gradient, before compression. True: after
  # the exchange, as always for schemes with second moments.
  optimizer.decay_after_exchange = False
  # Steps whose gradients are averaged to one, before weight decay, clipping,
  # exchange and optimizer; gTop-k's paper takes 16 for ResNet-50. The steps
  # between send nothing. Must divide train.steps. All other numbers of steps in
  # this file, also of schedules and warm-ups, still count batches. 1: off.
  optimizer.accumulate = 1
  # Workers train alone, and exchange every so many steps how far they moved
  # (`gs.outer`, with Nesterov momentum; DiLoCo). compression.name is then the
  # scheme of these exchanges, and compression.clip_norm the norm of a worker's
  # gradient. Must divide train.steps and train.eval_every. 0: off.
  optimizer.sync_every = 0
  optimizer.outer_learning_rate = 0.7
  optimizer.outer_momentum = 0.9
  # Or cosine (to 0), steps (a tenth at 1/2 and 3/4 of the run), milestones
  # (times `lr_decay_factor` after each of `milestones`), periodic (times it
  # after every `decay_epochs`), plateau (times it when `patience` tests in a
  # row, one every train.eval_every steps, have found no smaller loss; hold out
  # a part of the training set for them, by data.test_split).
  optimizer.schedule = 'constant'
  optimizer.milestones = ''  # epochs, such as '81,122'
  optimizer.lr_decay_factor = 0.1
  optimizer.decay_epochs = 0.0
  optimizer.patience = 1  # tests
  # Steps in which the learning rate rises linearly from this share of it.
  optimizer.linear_warmup_steps = 0  # 0: off
  optimizer.linear_warmup_from = 0.0
  # Factor of the learning rate during compression.warmup_steps: the papers of
  # DGC and gTop-k take a smaller rate there. In (0, 1]; 1: the same rate.
  optimizer.warmup_factor = 1.0

  config.compression = compression = ml_collections.ConfigDict()
  # A factory of gradsparse.recipes, or package.module:factory for a factory of
  # your own that Python can import and that has an `axis_name` keyword.
  compression.name = 'dense'
  compression.warmup_steps = 0  # of rising sparsity; 0: off
  # How sparsity rises. 'dgc' and 'gtopk': in the stages of these papers.
  # 'linear_drop_ratio': evenly from 0, step by step (Aji et al. on local
  # gradients). 'paper': gtopk's own, DGC's for all others.
  compression.warmup = 'paper'
  compression.clip_norm = 0.0  # of the local gradient; 0: off
  # Add what was not sent to this worker's update: sum, partial or error; ''
  # is off. Parameters then differ between workers, and are averaged now and
  # then; evaluation and params.npz use the mean over workers.
  compression.local_gradient = ''
  compression.param_sync_every = 500  # steps
  # Examples whose gradients are held at a time, where the scheme needs second
  # moments (variance_based, variance_strom); 0: the whole batch, as it must be
  # for a model with batch normalisation.
  compression.microbatch = 0

  config.parallel = parallel = ml_collections.ConfigDict()
  parallel.runner = 'simulate'  # or pmap, shard_map: a device a worker
  parallel.num_workers = 4
  # Steps between two checks that shared state is the same on all workers, bit
  # for bit; each checkpoint and the last step are checked too. A check sends 4
  # bytes a leaf to every other worker, which comm/ does not count. Under
  # simulate and pmap there is one copy, and nothing to check. 0: never.
  parallel.check_agreement_every = 100
  # Two levels: with N > 1 a worker is a node of N inner workers (under
  # shard_map a device each; not for pmap). Each inner worker has a batch of its
  # own, their gradients are averaged densely, and the scheme works between the
  # nodes. comm/sent_bytes is what one inner worker sends to its peers in other
  # nodes, so N times as much leaves a node; comm/inner_sent_bytes is what it
  # sends inside its node.
  parallel.devices_per_node = 1
  # Number of simulated workers whose gradients are computed at a time; memory
  # holds so many backward passes. Must divide parallel.num_workers. 0: all.
  parallel.workers_per_chunk = 0
  # Resume the run of the working directory with another number of workers, or
  # another runner. Pending gradients go to the new workers.
  parallel.resize = False

  config.lock()  # ml_collections refuses other names from here on
  compression.unlock()  # but for the arguments of the scheme
  return config


def with_scheme(
  config: ml_collections.ConfigDict,
  schemes: Mapping[str, Mapping[str, Any]],
  scheme: str,
) -> ml_collections.ConfigDict:
  """Returns `config` with one of the schemes that an experiment compares.

  Args:
    config: is changed.
    schemes: arguments of the factory, by its name; ':' and more may follow
      the name, where one factory has several settings.
    scheme: what the command line has after the first colon, as in
      `--config=configs/digits.py:dgc`.

  Raises:
    ConfigError: the experiment has no such scheme.
  """
  if scheme not in schemes:
    raise errors.ConfigError(
      f'this config has no setting {scheme!r}; it has {", ".join(schemes)}'
    )
  config.compression.name = scheme.partition(':')[0]
  config.compression.update(schemes[scheme])
  return config
