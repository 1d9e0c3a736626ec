"""A campaign as pictures, tables and one self-contained HTML file."""
