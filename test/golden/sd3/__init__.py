"""Scripts for the Stable Diffusion 3 fixtures, run by ../make.py; make.py in this folder documents their contents."""
