"""A small question, which tests of the advice vary."""

FEW = ['dgc 0.001', 'one_bit_sgd, scatter']
TREE = {'kernel': [512, 512], 'bias': [512]}
ASKED = dict(step_s=0.1, workers=4, bandwidth='10mbit', schemes=FEW)
