"""Code that runs inside a child process, and only there. Only here are jax, torch or triton imported."""
