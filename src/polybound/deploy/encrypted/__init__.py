"""Encrypted inference (CKKS): a client that alone can decrypt, a server that alone has the network.

noise: secure moduli, and what each step of the scheme adds; seal: SEAL's objects, and their bytes checked; engine:
sums and products of ciphertexts; plan: what clients are told; client and server: one image; http: the server on a
socket. chain: networks of one product of affine maps, several times as fast, and batches; graph: all others.
"""
