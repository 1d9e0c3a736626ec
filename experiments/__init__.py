"""Campaign files, benchmarks of tilewright itself and recorded results."""
