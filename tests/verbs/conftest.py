"""The fixtures of the scenarios, for the tests of each verb."""

from tests.end_to_end.conftest import a_world, caged_settings, sandbox_settings, world

__all__ = ["a_world", "caged_settings", "sandbox_settings", "world"]
