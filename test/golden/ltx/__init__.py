"""Scripts for the LTX-2 fixtures, run by ../make.py; make.py in this folder documents their contents."""
