"""Encrypted inference (CKKS): a client that alone can decrypt, a server that alone has the network.

polynomial: what is evaluated, and the ranges of its values; packing: where everything lies in the slots; noise: the
error of a logit, and the parameters that make it small; plan: the choice of all that; seal: SEAL's objects, and their
bytes checked; server and client: one image; http: the server on a socket; batch: plan, server and client for thousands
of images at once. These are for chains of few products; deep: all other networks.
"""
