# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""What a job of several ranks says of itself (models/job.h): the truth that the analysis does not know."""
import collections


def read_truth(path):
    """The job's truth file: lists of words by their first one."""
    truth = collections.defaultdict(list)
    with open(path, encoding="ascii") as file:
        for line in file:
            name, *words = line.split()
            truth[name].append(words)
    return truth
