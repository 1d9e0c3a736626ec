"""Takes a user's own kernels in: runs inside one child that holds the user's code and no candidate's."""
