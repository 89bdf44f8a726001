# SPDX-License-Identifier: Apache-2.0
"""What a robot senses: LiDAR, height scans and cameras, batched over worlds and seeded per world."""
