"""Encrypted inference (CKKS): a client that alone can decrypt, a server that alone has the network, and their plan."""
