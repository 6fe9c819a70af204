"""What models, methods, protocols and attacks are called in reports."""

from __future__ import annotations

__all__ = ["METHODS", "MODELS", "SOURCES", "attack_label"]

MODELS = {"pn-4": "PN-4", "pn-10": "PN-10", "pn-conv": "PN-Conv", "ncp-4": "NCP-4"}
METHODS = {
    "none": "no projection",
    "projection": "projection",
    "jacobian": "Jacobian",
    "l2": "L2",
    "certified": "certified training",
    "none+at": "AT",
    "projection+at": "projection + AT",
    "jacobian+at": "Jacobian + AT",
    "l2+at": "L2 + AT",
    "layerwise-projection": "layer-wise",
}
SOURCES = {"published": "published protocol", "sound": "sound protocol"}


def attack_label(attack: str) -> str:
    """As the paper writes it.

    >>> attack_label("pgd-0.1-20-0.01")
    'PGD-(0.1, 20, 0.01)'
    """
    kind, _, rest = attack.partition("-")
    if attack == "clean":
        return "clean"
    if kind == "pgd":
        return f"PGD-({', '.join(rest.split('-'))})"
    return {"fgsm": f"FGSM-{rest}", "apgdt": "APGDT", "tpgd": "TPGD", "certified": f"certified at {rest}"}.get(
        kind, attack
    )
