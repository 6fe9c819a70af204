"""Bounds of a margin over a box or ball, from the loosest to the tightest.

slopes: linear forms of every unit; first_order: the expansion and its remainder; quadratic: minorants of quadratic
forms; second_order: the expansion to second order; balls: the same over l_2 balls, as trust-region problems;
differentiable: first order for training; baselines: Lipschitz, interval and CROWN bounds to compare with.
"""
