"""Encrypted inference for any graph: leveled CKKS, one level for each product in a row.

entries: the entries of affine maps; stages: the graph as values between products; balance: values of one size; layout:
where values lie, matrices as diagonals; circuit: the choice of all layouts and steps, by what cost says; execute: the
evaluation; noise: ranges and errors; moduli: primes and scales; plan: the choice of all that.
"""
