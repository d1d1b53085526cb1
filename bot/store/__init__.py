"""The tables: all SQL, named, in one place for each subject."""
