"""Sound files of the layouts of speech sets, small, for tests."""

import numpy as np
import soundfile


def tone(path, *, seconds=0.2, rate=16_000, hertz=500, channels=1, **form):
  """Writes a tone."""
  path.parent.mkdir(parents=True, exist_ok=True)
  time = np.arange(round(seconds * rate)) / rate
  signal = 0.3 * np.sin(2 * np.pi * hertz * time)
  signal = np.repeat(signal[:, None], channels, axis=1)
  soundfile.write(path, signal, rate, **({'subtype': 'PCM_16'} | form))


def write_fsdd(root, speakers=('ann', 'bob'), numbers=12):
  """Writes recordings of digits 0 to 2; what is heard tells which it is."""
  folder = root / 'fsdd/recordings'
  for speaker in speakers:
    for digit in range(3):
      for number in range(numbers):
        tone(
          folder / f'{digit}_{speaker}_{number}.wav',
          seconds=0.1 + 0.01 * number,
          rate=8000,
          hertz=500 * (digit + 1),
        )
  return folder


AN4 = {
  'train': ['GO', 'ENTER FIFTY ONE', 'YES', "O'CLOCK", 'HELP'],
  'test': ['NO', 'STOP'],
}


def write_an4(root, suffix='.wav'):
  """Writes AN4 as it is published; the test's transcripts without marks."""
  folder = root / 'an4'
  form = {'format': 'NIST'} if suffix == '.sph' else {}
  for part, texts in AN4.items():
    lines = []
    for number, text in enumerate(texts):
      name = f'an{number}-{part}-b'
      tone(
        folder / f'wav/an4_clstk/{part}/{name}{suffix}',
        seconds=0.4 + 0.1 * number,
        **form,
      )
      marked = f'<s> {text} </s>' if part == 'train' else text
      lines.append(f'{marked} ({name})\n')
    path = folder / f'etc/an4_{part}.transcription'
    path.parent.mkdir(exist_ok=True)
    path.write_text(''.join(lines))
  return folder


def write_librispeech(root):
  """Writes two speakers for training, and one in each of two test folders."""
  folder = root / 'LibriSpeech'
  for part, speaker, chapter, texts in (
    ('train-clean-100', 19, 198, ['NORTHANGER ABBEY', "THIS LITTLE WORK'S"]),
    ('train-other-500', 20, 205, ['CHAPTER ONE', 'AND ALSO', 'HE']),
    ('test-clean', 61, 70, ['TESTED']),
    ('test-other', 62, 71, ['NOISY', 'AND FAR']),
    ('dev-clean', 63, 72, ['HELD OUT']),
  ):
    place = folder / f'{part}/{speaker}/{chapter}'
    lines = []
    for number, text in enumerate(texts):
      name = f'{speaker}-{chapter}-{number:04}'
      tone(place / f'{name}.flac', seconds=0.4 + 0.1 * number)
      lines.append(f'{name} {text}\n')
    (place / f'{speaker}-{chapter}.trans.txt').write_text(''.join(lines))
  return folder
