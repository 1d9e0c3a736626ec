"""The process that runs a user's program: records its step, searches configurations, proves replacements."""
