"""Encrypted inference for any graph: leveled CKKS, one level for each product in a row.

entries: the entries of affine maps; stages: the graph as values between products; layout: where values lie, matrices as
diagonals; circuit: the choice of all layouts and steps, by cost; execute: the evaluation, for any engine;
ciphertexts: SEAL's engine.
"""
