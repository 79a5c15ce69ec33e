"""Log-spectrograms, normalised for each utterance.

A frame is what 20 ms sound like, and a new one begins every 10 ms. So a second
of 16 kHz gives 99 frames of 161 frequencies, of 8 kHz of 81.
"""

import numpy as np

_WINDOW = 0.020  # seconds
_HOP = 0.010  # seconds
_FLOOR = 1e-8  # of the power, so that silence has a logarithm


def num_bins(rate: int) -> int:
  """Returns how many frequencies a frame has, at so many samples a second."""
  return round(rate * _WINDOW) // 2 + 1


def num_frames(samples: np.ndarray, rate: int) -> np.ndarray:
  """Returns how many frames so many samples give; at least one."""
  window, hop = round(rate * _WINDOW), round(rate * _HOP)
  return 1 + np.maximum(samples - window, 0) // hop


def log_spectrogram(signal: np.ndarray, rate: int) -> np.ndarray:
  """Returns the logarithm of the power of each frequency in each frame.

  Its mean over the utterance is 0, and its standard deviation 1.

  Args:
    signal: float32[samples], from -1 to 1.
    rate: samples a second.

  Returns:
    float32[num_frames, num_bins].
  """
  window, hop = round(rate * _WINDOW), round(rate * _HOP)
  signal = np.pad(signal, (0, max(window - len(signal), 0)))
  frames = np.lib.stride_tricks.sliding_window_view(signal, window)[::hop]
  spectrum = np.fft.rfft(frames * np.hamming(window).astype(np.float32))
  power = spectrum.real**2 + spectrum.imag**2
  logarithm = np.log(power.astype(np.float64) + _FLOOR)
  spread = np.maximum(logarithm.std(), 1e-5)  # silence has none
  return ((logarithm - logarithm.mean()) / spread).astype(np.float32)
