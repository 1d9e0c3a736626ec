"""Reads benchmarks' files: KernelBench, JAXBench, flashinfer-bench."""
