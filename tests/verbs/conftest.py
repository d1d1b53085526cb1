"""The fixtures of the scenarios, for the tests of each verb."""

from tests.end_to_end.conftest import a_world, sandbox_settings, sandboxed_settings, world

__all__ = ["a_world", "sandbox_settings", "sandboxed_settings", "world"]
