"""Reports: their tables, figures and pages. What needs an extra says which one."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from polybound.errors import PolyboundError

if TYPE_CHECKING:
    from polybound.report.build import Report, build_report, report_runs
    from polybound.report.card import Card, model_card
    from polybound.report.draw import check_figure_file, draw_attacks, draw_demo
    from polybound.report.elements import SYMBOLS, Table
    from polybound.report.explorer import Feature, build_explorer
    from polybound.report.network_drawing import draw_figure_1, draw_network, network_svg
    from polybound.report.tensorboard import EventLog

__all__ = [
    "SYMBOLS",
    "Card",
    "EventLog",
    "Feature",
    "Report",
    "Table",
    "build_explorer",
    "build_report",
    "check_figure_file",
    "draw_attacks",
    "draw_demo",
    "draw_figure_1",
    "draw_network",
    "model_card",
    "network_svg",
    "report_runs",
]

_HOME = {
    "Card": "card",
    "EventLog": "tensorboard",
    "Feature": "explorer",
    "Report": "build",
    "SYMBOLS": "elements",
    "Table": "elements",
    "build_explorer": "explorer",
    "build_report": "build",
    "check_figure_file": "draw",
    "draw_attacks": "draw",
    "draw_demo": "draw",
    "draw_figure_1": "network_drawing",
    "draw_network": "network_drawing",
    "model_card": "card",
    "network_svg": "network_drawing",
    "report_runs": "build",
}


def __getattr__(name: str) -> Any:
    """Names are loaded when first used: matplotlib is an extra."""
    if name not in _HOME:
        raise AttributeError(f"module 'polybound.report' has no attribute {name!r}")
    try:
        return getattr(import_module(f"polybound.report.{_HOME[name]}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in ("matplotlib", "jinja2", "plotly"):
            raise PolyboundError(f"plots and reports need {error.name}: pip install 'polybound[experiments]'") from None
        raise
