"""The search for a proof: stages from cheap to tight, and branch and bound.

proof_state: the best bound and proof of every claim; boxes: `Search`, the options, and `Verifier`, the stages over
boxes, with its attack; balls: the same over l_2 balls.
"""
