"""Scripts for the WAN fixtures, run by ../make.py; make.py in this folder documents their contents."""
