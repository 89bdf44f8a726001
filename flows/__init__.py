# SPDX-License-Identifier: Apache-2.0
"""What runs when: the store, the scene graph, Prefect."""
