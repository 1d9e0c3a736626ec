"""Parts of kernels that several families share. No family: it has no operators."""
