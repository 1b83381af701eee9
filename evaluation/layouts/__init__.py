"""The data sets of the paper in their official layouts, LongBench's tasks, and the project's own format.

The layout of a file is recognised from its content. Nothing here knows of models. To add a layout: see layout.py.
"""
from evaluation.layouts.dataset import Dataset

__all__ = ["Dataset"]
