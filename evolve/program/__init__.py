"""``tilewright program``: record a program's step, say what can be gained, tune, install and prove."""
