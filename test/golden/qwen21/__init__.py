"""Scripts for the Qwen-Image-2.1 fixtures, run by ../make.py; make.py in this folder documents their contents."""
