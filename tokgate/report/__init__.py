"""Verdicts as a terminal table, Markdown, JSON and JUnit."""
