"""Scripts for the Ovis-Image fixture, run by ../make.py; make.py in this folder documents its contents."""
