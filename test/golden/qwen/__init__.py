"""Scripts for the Qwen-Image fixtures, run by ../make.py; make.py in this folder documents their contents."""
