"""`threadtree setup`: connects the bot to GitHub, by an App that is made in the browser or by a token."""
