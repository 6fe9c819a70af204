"""Reports: their tables, figures and pages. Names are loaded when first used: matplotlib is an extra."""

from __future__ import annotations

from typing import TYPE_CHECKING

from polybound._lazy import lazy

if TYPE_CHECKING:
    from polybound.report.build import Report as Report
    from polybound.report.build import build_report as build_report
    from polybound.report.build import report_runs as report_runs
    from polybound.report.card import Card as Card
    from polybound.report.card import model_card as model_card
    from polybound.report.draw import check_figure_file as check_figure_file
    from polybound.report.draw import draw_attacks as draw_attacks
    from polybound.report.draw import draw_demo as draw_demo
    from polybound.report.elements import SYMBOLS as SYMBOLS
    from polybound.report.elements import Table as Table
    from polybound.report.explorer import Feature as Feature
    from polybound.report.explorer import build_explorer as build_explorer
    from polybound.report.network_drawing import draw_figure_1 as draw_figure_1
    from polybound.report.network_drawing import draw_network as draw_network
    from polybound.report.network_drawing import network_svg as network_svg

__getattr__, __dir__ = lazy(__name__, jinja2="experiments", matplotlib="experiments", plotly="experiments")
