# SPDX-License-Identifier: Apache-2.0
"""Physics side by side with MuJoCo: `python -m benchmarks.physics [--quick] [--json FILE] [--robots DIR]`."""
