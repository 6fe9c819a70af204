"""The search for a proof: stages from cheap to tight, and branch and bound.

proof_state: the best bound and proof of every claim; attack: counterexamples; boxes: the stages over boxes; balls: over
l_2 balls.
"""
