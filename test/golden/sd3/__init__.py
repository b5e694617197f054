"""The Stable Diffusion 3 fixtures; make.py beside this folder makes them, make.py in it says what they hold."""
