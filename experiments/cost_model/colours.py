"""Okabe and Ito's colours, told apart by colour-blind readers too."""

BLACK = '#000000'
ORANGE = '#D55E00'
BLUE = '#0072B2'
GREEN = '#009E73'
PINK = '#CC79A7'
YELLOW = '#E69F00'
SKY = '#56B4E9'
GREY = '#999999'
