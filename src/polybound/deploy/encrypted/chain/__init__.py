"""Encrypted inference of one product of affine maps: a CCP, or an NCP of degree two, in a tree of products.

polynomial: what is evaluated, and the ranges of its values; packing: where everything lies in the slots, and the
evaluation of one image; parameters: the error of a logit, and the primes and scales that make it small; plan: the
choice of all that; batch: plan, server and client for thousands of images at once.
"""
