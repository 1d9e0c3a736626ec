"""From a campaign's winner to a library that programs import: verify again, compare, write, keep."""
