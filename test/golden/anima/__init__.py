"""Scripts for the Anima fixture, run by ../make.py; make.py in this folder documents its contents."""
