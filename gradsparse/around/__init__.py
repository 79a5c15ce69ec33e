"""What surrounds a scheme in training: transformations, moments, QSVRG."""
