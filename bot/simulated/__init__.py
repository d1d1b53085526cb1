"""Stand-ins for the outside world that the demo and the tests run against."""
