"""Running git: argv only, a neutral environment, a time limit, errors by kind."""
