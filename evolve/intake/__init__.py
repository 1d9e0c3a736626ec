"""From a function in somebody's code base to an operator and a campaign."""
