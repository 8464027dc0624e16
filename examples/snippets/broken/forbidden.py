# Refused before it runs (blocked, kind 'forbidden'): snippets have no files and no other processes.
import os

os.system('ls')
