"""Where candidates run: the Ray pool, the sandboxed child process, the runners."""
