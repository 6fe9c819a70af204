"""Proofs of certificates on disk, and the check that believes nothing in them.

`files` writes them; `schema` reads them into typed values; `check` proves those again, by `enclosures` in ball
arithmetic (`arb`) and by `exact` in rational arithmetic. The check imports nothing of what makes certificates.

A file is JSON with the boxes, the counterexamples and the proofs, tied to the weights by their SHA-256. An image's box
is given by `eps`, one radius or one for each feature, and the domain, or by its own sides, `box`. With `norm` "2" it is
about the l_2 ball of these radii in that box; all images of a file have the same norm. A proof is a tree of steps about
one rival over a box, which begins as the whole of it:

    {"by": "first" | "slopes"}                       the bound of first order is positive over the box
    {"by": "second" | "absorbed", on, v, mu}         so is the one that mu and v prove, in the coordinates `on`
    {..., box, monotone, then}                       that bound excludes what is outside of `box`, [coordinate, lower,
                                                     upper] each, or, in the `monotone` ones, the margin is least there
    {split: [coordinate, at], low, high}             both halves have a proof
    {"by": "point"}                                  the box is a point
    {"by": "ball" | "ball slopes"}                   the bound of first order is positive over the whole ball
    {"by": "trust" | "trust absorbed", on, v, lam}   so is the one of the trust-region problem that lam and v prove
    {"by": "cap", on, v, lam, kappa, d, s, centre, radii, then}    that bound excludes all of the ball but a cap, which
                                                     lies in the ball of that centre and those radii
    {"by": "outside"}                                the box has no point of the ball

In parts of a ball, `nu` is the multiplier of the whole one. Proofs about balls have no `monotone` coordinates, whose
ends may lie outside of the ball.

Files about deep networks have `kind` "graph", and steps that `graphs` proves in tensors with radii (`midrad`), by
affine arithmetic of its own (`zonotopes`):

    {"by": "interval"} | {"by": "generators"}        that bound is positive over the box or ball
    {"by": "planes", planes}                         so is the one by planes through each product, mixed so
    {"by": "layers", scale, v}                       so is that by all second-order terms, with a diagonal a product
    {"by": "whole", d, v}                            with one diagonal for all
    {split: [coordinate, at], low, high}             both halves of the box have a proof

Files of intervals have `forms`, weights and constants of the outputs, and for each image and form the proven ends,
`lower` and `upper`, the attained ones, `lowest` and `highest`, with their points, and two proofs, that the form less
`lower` and `upper` less the form are positive. Where an end is null, nothing is proven. The proven ends are a billionth
of the interval wider than those in memory, so that whatever the check rounds cannot matter.
"""

__all__ = ["FORMAT", "GRAM_UNITS"]

FORMAT = "polybound certificates 1"

GRAM_UNITS = 512
"""Up to this many units, Gram matrices of slopes are formed for each box, by what makes proofs and by their check."""
