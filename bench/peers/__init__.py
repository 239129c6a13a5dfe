"""The peers, each as its own documentation sets it up for many short jobs. Imported only in the peers'
environment.
"""
