# SPDX-License-Identifier: Apache-2.0
"""What bench/faults.py is made of."""
