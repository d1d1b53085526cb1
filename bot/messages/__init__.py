"""Every text that people read on GitHub, and what makes foreign text safe to show there. No I/O."""
